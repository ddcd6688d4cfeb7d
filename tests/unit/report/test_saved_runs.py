"""What `legroom run` and `legroom verify` saved is shown again; what is wrong with it is said."""

import json

import pytest
from click.testing import CliRunner

from legroom.cli._show import show_command
from legroom.engine import Difference, ErrorFigures, RunReport, Verification
from legroom.errors import RunFormatError
from legroom.report import load_report

RUN = RunReport(
    budget_bytes=3 * 2**20,
    plain_peak_bytes=5 * 2**20,
    predicted_peak_bytes=2 * 2**20,
    measured_peak_bytes=2 * 2**20,
    resident_peak_bytes=None,
    step_ms=12.5,
    planning_s=1.5,
    replans=0,
    ways={"remake": {"tensors": 3, "bytes": 2**20}},
    not_planned=(("Critic", "left as it is: --leave"),),
    model="Generator",
)
VERIFIED = Verification(
    target="train.py",
    equal=False,
    exactness="bitwise",
    tolerance=0.0,
    steps=2,
    compared={"losses": 2, "gradients": 8},
    different=(Difference(1, "gradients", "head.weight", way="remake"),),
    errors={"gradients": ErrorFigures(0.5, None)},
    run=RUN,
)


@pytest.mark.parametrize("saved", [RUN, VERIFIED])
def test_what_was_saved_is_read_back_as_it_was(saved, tmp_path):
    saved.save(tmp_path / "saved.json")
    assert load_report(tmp_path / "saved.json") == saved


def test_a_run_is_shown_again(tmp_path):
    RUN.save(tmp_path / "run.json")
    shown = CliRunner().invoke(show_command, [str(tmp_path / "run.json")])
    assert shown.exit_code == 0
    for part in ("Generator", "5.00 MiB", "tensors peaked at 2.00 MiB", "remake", "Critic"):
        assert part in shown.output


def test_a_verification_is_shown_again(tmp_path):
    VERIFIED.save(tmp_path / "verify.json")
    shown = CliRunner().invoke(show_command, [str(tmp_path / "verify.json")])
    assert shown.exit_code == 0
    assert "head.weight" in shown.output


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("replans", None, "run.replans should be of type int"),
        ("ways", [], "run.ways should be an object"),
        ("ways", {"hold": {"tensors": "3"}}, "run.ways.hold.tensors should be of type int"),
        ("not_planned", [["a"]], "should have 2 members"),
    ],
)
def test_a_wrong_field_is_named(field, value, said, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**RUN.to_dict(), field: value}))
    with pytest.raises(RunFormatError, match=said):
        load_report(path)


def test_there_is_no_page_of_a_run(tmp_path):
    RUN.save(tmp_path / "run.json")
    page = tmp_path / "page.html"
    shown = CliRunner().invoke(show_command, [str(tmp_path / "run.json"), "--html", str(page)])
    assert shown.exit_code != 0
    assert not page.exists()
