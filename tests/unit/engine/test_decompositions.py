"""Formulas that Inductor is given in place of its own."""

import pytest
import torch

from legroom.engine.graph._decompositions import DECOMPOSITIONS, _view

aten = torch.ops.aten


def test_a_view_that_there_cannot_be_is_a_copy():
    value = torch.arange(24.0).view(2, 3, 4)
    assert _view(value, [6, 4]) is NotImplemented
    assert _view(value, [2, -1]) is NotImplemented
    turned = value.transpose(1, 2)
    assert torch.equal(_view(turned, [8, 3]), turned.reshape(8, 3))


@pytest.mark.parametrize("reduction", [0, 1, 2], ids=["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 7, 3, 4)])
def test_gradients_of_losses_are_torchs(shape, weighted, reduction):
    generator = torch.Generator().manual_seed(3)
    num_classes = shape[0] if len(shape) == 1 else shape[1]
    places = shape[:1] + shape[2:] if len(shape) > 1 else ()
    predicted = torch.randn(shape, generator=generator).log_softmax(min(1, len(shape) - 1))
    target = torch.randint(0, num_classes, places, generator=generator)
    if places:
        target.view(-1)[1] = -100  # counts for nothing
    weight = torch.rand(num_classes, generator=generator) if weighted else None
    kind = "nll_loss2d" if len(shape) > 2 else "nll_loss"
    loss, total = getattr(aten, f"{kind}_forward")(predicted, target, weight, reduction, -100)
    gradient = torch.randn(loss.shape, generator=generator)
    backward = getattr(aten, f"{kind}_backward").default
    rest = (predicted, target, weight, reduction, -100, total)
    expected = backward(gradient, *rest)
    torch.testing.assert_close(DECOMPOSITIONS[backward](gradient, *rest), expected)
