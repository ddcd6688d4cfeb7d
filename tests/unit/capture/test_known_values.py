"""Questions about values that are answered while TorchDynamo traces, and asked again by guards."""

import pytest
import torch
from torch._dynamo.utils import counters

from legroom.capture._known_values import (
    count_below,
    is_known_as_one_sequence,
    is_known_below,
    is_known_full,
)

FULL = torch.ones(2, 5, dtype=torch.long)
PADDED = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def captured(function):
    return torch.compile(function, backend="eager", dynamic=False, fullgraph=True)


def described(is_true: bool | None) -> int:
    """A number for each answer, as graphs return tensors."""
    return {True: 1, False: 0, None: -1}[is_true]


def test_outside_of_tracing_nothing_is_known():
    assert is_known_full(FULL) is None
    assert is_known_as_one_sequence(FULL) is None
    assert is_known_below(FULL, 9) is None


def test_each_answer_has_its_own_graph():
    @captured
    def answer(mask):
        return mask.sum() * 0 + described(is_known_full(mask.to(torch.bool)))

    answers = [answer(mask).item() for mask in (FULL, PADDED, FULL.clone(), PADDED.clone())]
    assert answers == [1, 0, 1, 0]
    assert counters["stats"]["unique_graphs"] == 2


def test_reading_a_mask_leaves_it_known():
    @captured
    def answer(mask):
        seen = mask.bool() & (mask.bool().view(-1)[:1] | mask.bool())
        return seen.sum() * 0 + described(is_known_full(mask.bool()))

    assert answer(FULL).item() == 1


def test_tensors_made_of_numbers_are_known():
    @captured
    def answer(x):
        positions = (torch.arange(x.shape[1], device=x.device) + 3).unsqueeze(0).expand(2, -1)
        mask = torch.ones(2, x.shape[1])
        known = is_known_as_one_sequence(positions), is_known_full(mask)
        return x + sum(described(each) for each in known)

    assert answer(torch.zeros(1, 4)).sum() == 8


def test_packed_positions_are_not_one_sequence():
    @captured
    def answer(positions):
        return positions * 0 + described(is_known_as_one_sequence(positions))

    assert answer(torch.arange(6).expand(2, -1)).unique().tolist() == [1]
    assert answer((torch.arange(6) % 3).expand(2, -1)).unique().tolist() == [0]


@pytest.mark.parametrize(
    "change",
    [
        lambda mask: mask.mul_(1),
        lambda mask: mask * torch.rand(2, 5),
        lambda mask: mask.cumsum(-1),
    ],
)
def test_written_random_and_other_tensors_are_unknown(change):
    @captured
    def answer(mask):
        return change(mask.clone()).sum() * 0 + described(is_known_full(change(mask.clone())))

    assert answer(FULL).item() == -1


@pytest.mark.parametrize("view", [lambda mask: mask, lambda mask: mask.view(-1)])
def test_tensor_that_is_written_to_is_unknown(view):
    @captured
    def answer(x):
        mask = torch.ones(2, 5)
        view(mask)[0] = 0
        return x + described(is_known_full(mask))

    assert answer(torch.zeros(1)).item() == -1


@pytest.mark.parametrize(("limit", "expected"), [(6, 1), (7, 1), (5, -1)])
def test_choices_of_topk_are_below_their_number(limit, expected):
    @captured
    def answer(scores):
        _, chosen = torch.topk(scores, 2, dim=-1)
        return scores.sum() * 0 + described(is_known_below(chosen.reshape(-1), limit))

    assert answer(torch.rand(4, 6)).item() == expected


def test_count_below_is_what_bincount_returns():
    values = torch.tensor([0, 2, 2, 1])
    assert torch.equal(count_below(values, 5), torch.bincount(values, minlength=5))
    torch.library.opcheck(count_below, (values, 5))
