import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.errors import UsageError
from legroom.units import format_bytes, format_ms, format_share, parse_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (10 * 1024**2, "10.0 MiB"),
        (1024**3 - 1, "1.00 GiB"),
        (int(1.25 * 1024**3), "1.25 GiB"),
        (5 * 1024**5, "5120.0 TiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_bytes_are_printed_for_people(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [("6GiB", 6 * 1024**3), ("500 MB", 500_000_000), ("1024", 1024), ("1.5 kib", 1536), ("7b", 7)],
)
def test_sizes_are_read_with_or_without_unit(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "6 gigs", "-1GiB", "1e3", "6GiB6"])
def test_what_is_not_a_size_is_refused_with_examples(text):
    with pytest.raises(UsageError, match="is not a size; write for example 6GiB"):
        parse_bytes(text)


@given(st.integers(min_value=1, max_value=2**50))
def test_printed_bytes_read_back_within_rounding(count):
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.06)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0"),
        (0.085, "85 µs"),
        (4.25, "4.2 ms"),
        (412.4, "412 ms"),
        (1830, "1.83 s"),
        (90_000, "1.5 min"),
    ],
)
def test_times_are_printed_for_people(milliseconds, text):
    assert format_ms(milliseconds) == text


def test_shares_have_a_decimal_when_small():
    assert [format_share(part, 100) for part in (38, 4, 0)] == ["38 %", "4.0 %", "0.0 %"]
    assert format_share(1, 0) == "–"
