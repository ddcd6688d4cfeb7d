import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.errors import UsageError
from legroom.plan._budget import Budget, choose_budget, parse_activations, parse_budget, parse_stash

GIB = 1024**3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4GiB", 4 * GIB),
        ("500 MB", 500_000_000),
        ("1048576", 2**20),
        ("1024 B", 1024),
        (1024, 1024),
        ("50%", 5 * GIB),
        ("50 %", 5 * GIB),
        (" 12.5% ", 10 * GIB // 8),
        ("100%", 10 * GIB),
    ],
)
def test_budgets_become_bytes(text, expected):
    assert parse_budget(text).resolve(10 * GIB, 2 * GIB) == expected


@pytest.mark.parametrize(("text", "expected"), [("50%", 6 * GIB), ("100 %", 10 * GIB)])
def test_activations_spare_the_state(text, expected):
    assert parse_activations(text).resolve(10 * GIB, 2 * GIB) == expected


def test_state_above_the_peak_is_the_peak():
    assert parse_activations("50%").resolve(GIB, 2 * GIB) == GIB


@pytest.mark.parametrize("value", ["-1GiB", "abc", "", "4 gigs", "50%%", "%"])
def test_malformed_budgets_are_refused_with_examples(value):
    with pytest.raises(UsageError, match=r"budget .* is not a size; write a size \(4GiB, 500MB\)"):
        parse_budget(value)


@pytest.mark.parametrize("value", ["0", 0, -5, "0%", "-10%"])
def test_budgets_of_nothing_are_refused(value):
    with pytest.raises(UsageError, match="leaves nothing; write a size"):
        parse_budget(value)


@pytest.mark.parametrize("parse", [parse_budget, parse_stash])
def test_a_number_that_lacks_its_unit_is_refused(parse):
    with pytest.raises(
        UsageError, match=r"'50' is 50 bytes; did you mean '50%', '50MiB' or '50GiB'\?$"
    ):
        parse("50")
    with pytest.raises(UsageError, match=r"' 500' is 500 bytes; did you mean '500MiB'\?$"):
        parse(" 500")


@pytest.mark.parametrize("value", [True, 1.5, None, b"4GiB"])
def test_other_types_are_no_budget(value):
    with pytest.raises(UsageError, match="is not a budget; write a size"):
        parse_budget(value)


@pytest.mark.parametrize("parse", [parse_budget, parse_activations])
def test_more_than_all_is_pointless(parse):
    with pytest.raises(UsageError, match=r"'150%' is more than the plain step needs.*at most 100%"):
        parse("150%")


def test_activations_in_bytes_are_refused():
    with pytest.raises(UsageError, match=r"activations '2GiB' is not a share.*as the budget"):
        parse_activations("2GiB")


def test_two_budgets_are_one_too_many():
    with pytest.raises(UsageError, match="both given; they bound the same peak, so give one"):
        choose_budget("4GiB", "50%")


def test_one_budget_or_none_is_chosen():
    assert choose_budget(None, None) is None
    assert choose_budget("4GiB", None) == Budget(num_bytes=4 * GIB)
    assert choose_budget(None, "50%") == Budget(share=0.5, spares_state=True)


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (Budget(num_bytes=4 * GIB), "4.00 GiB"),
        (Budget(share=0.5), "50 % of the peak"),
        (Budget(share=0.125, spares_state=True), "state plus 12.5 % of the rest"),
    ],
)
def test_budgets_are_printed_for_people(budget, text):
    assert str(budget) == text


@given(
    st.integers(1, 100), st.integers(0, 10**12), st.integers(0, 10**12)
)  # percent, plain peak, state
def test_shares_never_exceed_the_plain_peak(percent, plain, state):
    whole = parse_budget(f"{percent}%").resolve(plain, state)
    spared = parse_activations(f"{percent}%").resolve(plain, state)
    assert 0 <= whole <= spared <= plain
