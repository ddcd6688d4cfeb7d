import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom import errors
from legroom.units import parse_bytes


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
        match=r"no plan fits 1\.00 GiB: .* still peaks at 2\.00 GiB \(2147483648 bytes\)",
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
