import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom import errors
from legroom.units import parse_bytes

MIB = 2**20


def all_errors():
    return [
        item
        for _, item in inspect.getmembers(errors, inspect.isclass)
        if issubclass(item, errors.LegroomError)
    ]


def test_the_tree_in_the_docstring_names_every_error():
    missing = [item.__name__ for item in all_errors() if item.__name__ not in errors.__doc__]
    assert missing == []


def test_exit_codes_tell_misuse_from_failure():
    assert errors.UsageError.exit_code == errors.OutputError.exit_code == 2
    assert errors.ScriptError.exit_code == errors.NoTrainingError.exit_code == 1
    assert errors.ScriptInterruptedError.exit_code == 130


def test_a_missing_torch_interface_names_the_tested_version():
    with pytest.raises(errors.TorchInterfaceError, match=r"has no usable 'torch\.x'.*2\.13\.0"):
        raise errors.TorchInterfaceError("torch.x", tested="2.13.0")


def test_a_budget_that_cannot_be_met_says_what_would():
    with pytest.raises(
        errors.InfeasibleBudgetError,
        match=r"no plan fits 1\.00 GiB: the lowest is 2\.00 GiB \(2147483648 bytes\)\.",
    ) as caught:
        raise errors.InfeasibleBudgetError(
            budget_bytes=2**30, floor_bytes=2**31, largest=("1.00 GiB lm_head.addmm",)
        )
    text = str(caught.value)
    assert "largest live tensors at that peak: 1.00 GiB lm_head.addmm" in text
    assert "try: a budget of at least 2.00GiB (2147483648 bytes), or a smaller batch" in text
    assert (caught.value.budget_bytes, caught.value.floor_bytes) == (2**30, 2**31)
    assert caught.value.exit_code == 1


@given(st.integers(min_value=1, max_value=2**43))
def test_the_budget_that_is_named_works_when_typed(num_bytes):
    error = errors.InfeasibleBudgetError(budget_bytes=1, floor_bytes=num_bytes)
    named = str(error).split("a budget of at least ")[1].split(" (")[0]
    assert num_bytes <= parse_bytes(named) <= max(num_bytes + 103, num_bytes * 1.1)
    assert error.enough_bytes == num_bytes


def test_the_lowest_stands_beside_the_plain_peak():
    error = errors.InfeasibleBudgetError(
        budget_bytes=50 * MIB, floor_bytes=60 * MIB, plain_bytes=100 * MIB
    )
    assert "the lowest is 60.00 MiB (62914560 bytes), 60 % of plain's peak of 100.00 MiB." in str(
        error
    )
    assert not error.has_nothing_to_gain


def test_an_update_that_sets_the_peak_is_named():
    sizes = {"budget_bytes": 50 * MIB, "plain_bytes": 100 * MIB, "is_in_update": True}
    remedies = ("--disk FOLDER (disk=FOLDER)",)
    error = errors.InfeasibleBudgetError(floor_bytes=98 * MIB, remedies=remedies, **sizes)
    assert error.has_nothing_to_gain
    assert (
        "98 % of plain's peak of 100.00 MiB; nothing to gain: the peak is the update's "
        "(optimizer temporaries).\n  try: a budget of at least 98.0MiB (102760448 bytes)"
    ) in str(error)
    for useless in ("disk", "smaller batch"):
        assert useless not in str(error)
    lower = errors.InfeasibleBudgetError(floor_bytes=90 * MIB, **sizes)
    assert "100.00 MiB; the peak is the update's (optimizer temporaries)." in str(lower)
    roomy = lower.with_room(MIB)
    assert roomy.enough_bytes == 91 * MIB
    assert roomy.lowest_in_words == lower.lowest_in_words


def test_state_that_sets_the_peak_is_named():
    error = errors.InfeasibleBudgetError(
        budget_bytes=MIB, floor_bytes=98 * MIB, plain_bytes=100 * MIB, state_bytes=90 * MIB
    )
    assert "nothing to gain: 90.00 MiB of it is weights, gradients and optimizer state" in str(
        error
    )


@pytest.mark.parametrize(
    ("count", "text"), [(20_000, "19.5 KiB"), (900, "900 B"), (MIB, "1.00 MiB")]
)
def test_small_figures_are_in_small_units(count, text):
    assert f"no plan fits {text}:" in str(
        errors.InfeasibleBudgetError(budget_bytes=count, floor_bytes=2**31)
    )


def test_named_budgets_are_short():
    error = errors.InfeasibleBudgetError(budget_bytes=2**20, floor_bytes=71_237_658)
    assert "try: a budget of at least 68.0MiB (71237658 bytes), or a smaller batch" in str(error)


def test_a_stash_that_cannot_be_met_says_what_would():
    with pytest.raises(
        errors.InfeasibleStashError, match=r"a stash of at least 68\.0MiB \(71237658 bytes\), or a"
    ):
        raise errors.InfeasibleStashError(
            stash_bytes=2**20, least_bytes=71_237_658, budget_bytes=2**30
        )
