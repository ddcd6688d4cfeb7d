import io

from rich.console import Console

from legroom.meter import TierSpeed
from legroom.report import TierRow, print_tiers, tiers_data

FAST = TierSpeed(2**21, 2**20, 0.125, 0.25, 2**20, 2**19, 0.5, 1.5, 1.25)
ROWS = [
    TierRow("host", "pinned memory", {}, reason="there is no device [here]"),
    TierRow(
        "disk", "a file", {"where": "/scratch", "file_system": "ext4", "threads": "2"},
        free_bytes=2**30, speed=FAST,
    ),
]  # fmt: skip


def printed(rows):
    text = io.StringIO()
    print_tiers(rows, Console(file=text, width=120))
    return text.getvalue()


def test_figures_stand_in_the_table():
    text = printed(ROWS)
    for figure in ("1.95 GiB/s", "1000.0 MiB/s", "125 ms", "1.00 GiB", "ext4, 2 threads"):
        assert figure.replace("125 ms", "125 µs") in text, figure
    assert "while it moves, computing takes 25 % longer" in text
    assert "there is no device [here]" in text


def test_nothing_measured_is_no_second_table():
    assert "Measured here" not in printed(ROWS[:1])


def test_data_say_the_same():
    data = tiers_data(ROWS)
    assert data["tiers"][1]["speed"]["compute_slowdown"] == 1.25
    assert data["tiers"][0]["reason"]
