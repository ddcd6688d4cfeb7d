"""Tickets through operations of PyTorch's, in eager and in what AOTAutograd makes of them."""

import gc

import pytest
import torch

from tests.unit.tiers.holding import used_when_idle

TIER = []


def get_now(*args):
    """From the tier that the test uses."""
    return TIER[0].get(*args)


@pytest.fixture(scope="module", autouse=True)
def _operations():
    library = torch.library.Library("legroom_tests", "FRAGMENT")
    for name in ("put", "settle"):
        library.define(f"{name}(Tensor given) -> Tensor")
        library.impl(
            name,
            lambda given, name=name: getattr(TIER[0], name)(given),
            "CompositeExplicitAutograd",
        )
        library.impl(name, lambda given: given.new_empty(1, dtype=torch.int64), "Meta")
    library.define("get(Tensor ticket, int[] size, int[] stride, ScalarType dtype) -> Tensor")
    library.impl("get", get_now, "CompositeExplicitAutograd")
    library.impl(
        "get",
        lambda ticket, size, stride, dtype: ticket.new_empty_strided(size, stride, dtype=dtype),
        "Meta",
    )
    yield
    library._destroy()


class MovedSine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        operations = torch.ops.legroom_tests
        ctx.save_for_backward(operations.settle(operations.put(x)))
        ctx.layout = (list(x.shape), list(x.stride()), x.dtype)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (ticket,) = ctx.saved_tensors
        return grad * torch.ops.legroom_tests.get(ticket, *ctx.layout).cos()


def loss_of(a):
    return MovedSine.apply(MovedSine.apply(a * 2) * 3).sum()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_graphs_keep_slots_as_long_as_they_live(disk, is_compiled, monkeypatch):
    TIER[:] = [disk]
    step = loss_of
    if is_compiled:
        monkeypatch.setattr("torch._functorch.config.donated_buffer", False)
        step = torch.compile(loss_of, backend="aot_eager", fullgraph=True)
    a = torch.randn(1000, requires_grad=True)
    (expected,) = torch.autograd.grad(((a * 2).sin() * 3).sin().sum(), a)
    loss = step(a)
    assert disk.in_use().num_slots == 2
    for is_retained in (True, False):
        a.grad = None
        loss.backward(retain_graph=is_retained)
        assert torch.equal(a.grad, expected)
    assert used_when_idle(disk).num_slots == 0
    loss = step(a)
    assert disk.in_use().num_slots == 2
    del loss
    gc.collect()
    assert used_when_idle(disk).num_slots == 0
