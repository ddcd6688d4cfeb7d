"""A gradient written into zeros is one tensor, in a plain step and in a planned one."""

import pytest
import torch
from torch import nn

from legroom.capture._into_zeros import _WRITES
from legroom.capture._operations import FUNCTIONAL
from tests.unit.capture.test_step_capture import capture_of
from tests.unit.engine.training import check_prediction, check_same

ROWS = torch.tensor([3, 1, 3, 60, 2])
CHOSEN = torch.randint(64, (8, 5, 32), generator=torch.Generator().manual_seed(0))
SELECTIONS = {
    "highest": lambda x: x.max(1).values,
    "lowest of two": lambda x: x.kthvalue(2, 1).values,
    "sorted": lambda x: x.sort(1).values[:, :7],
    "rows": lambda x: x[:, ROWS],
    "rows and columns": lambda x: x[:, ROWS, ROWS % 32],
    "gathered": lambda x: x.gather(1, CHOSEN),
}


class Selecting(nn.Module):
    def __init__(self, select):
        super().__init__()
        self.below = nn.Linear(32, 32)
        self.select = select

    def forward(self, value):
        return self.select(torch.tanh(self.below(value))).square().mean()


@pytest.mark.parametrize(
    ("name", "budget"),
    [(name, "100%" if place % 2 else "lowest") for place, name in enumerate(SELECTIONS)],
)
def test_the_peak_is_that_of_one_tensor(name, budget):
    data = torch.randn(8, 64, 32)

    def gradients(model, step):
        loss = model(data)
        loss.backward()
        return loss

    handle = check_same(Selecting(SELECTIONS[name]), gradients, budget=budget, is_remade=False)
    check_prediction(handle, rel=0.01)


def planned_names(model, data):
    return [each.name for each in capture_of(model, x=data).planned.operations]


@pytest.mark.parametrize("name", SELECTIONS)
def test_no_zeros_are_left_in_the_graph(name):
    names = planned_names(Selecting(SELECTIONS[name]), torch.randn(8, 64, 32))
    assert any("_into_zeros" in each for each in names)
    assert not any(each.startswith("aten") and "zeros" in each for each in names)


def test_zeros_that_somebody_else_reads_stay():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 32))

        def forward(self, value):
            zeros = torch.zeros(64, 32)
            return zeros.index_put((ROWS,), self.weight[:5]).sum() + (zeros * value).sum()

    assert "aten.index_put.default" in planned_names(Own(), torch.randn(64, 32))


@pytest.mark.parametrize("func", _WRITES, ids=str)
def test_each_does_what_the_two_did(func):
    ours, place = _WRITES[func]
    index = torch.randint(9, (6, 4))
    args = (0, index, torch.randn(6, 4)) if place == 3 else ([index[:, 0]], torch.randn(6, 4), True)
    expected = func(torch.zeros(9, 4), *args)
    assert torch.equal(ours([9, 4], *args), expected)


def test_a_lookup_may_begin_with_a_whole_dimension():
    rows, values = torch.tensor([3, 1, 3]), torch.randn(4, 3, 2)
    expected = torch.zeros(4, 5, 2)
    expected[:, 3], expected[:, 1] = values[:, 0] + values[:, 2], values[:, 1]
    operation = torch.ops.legroom.index_put_into_zeros.default
    assert torch.equal(operation([4, 5, 2], [None, rows], values, True), expected)
    assert torch.equal(FUNCTIONAL[operation]([4, 5, 2], [None, rows], values, True), expected)
