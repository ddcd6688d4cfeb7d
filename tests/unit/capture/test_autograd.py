import contextlib

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from legroom.capture import observe_backward, saved_tensors
from legroom.errors import TorchInterfaceError


def kept(*roots):
    saved, opaque = saved_tensors(roots)
    return {(item.node, item.field): item.tensor for item in saved}, opaque


def test_saved_tensors_name_node_and_field():
    x = torch.randn(4, 8, requires_grad=True)
    hidden = x * 2
    saved, opaque = kept(nn.functional.gelu(hidden))
    assert saved["GeluBackward0", "self"].data_ptr() == hidden.data_ptr()
    assert opaque == set()


def test_saved_outputs_are_found_too():
    y = torch.randn(4, requires_grad=True).exp()
    saved, _ = kept(y)
    assert saved["ExpBackward0", "result"].data_ptr() == y.data_ptr()


def test_looking_does_not_run_a_checkpoint_again():
    runs = []

    def block(x):
        runs.append(1)
        return nn.functional.gelu(x * 2)

    y = checkpoint(block, torch.randn(4, requires_grad=True), use_reentrant=False)
    saved, _ = kept(y)
    assert len(runs) == 1
    assert ("GeluBackward0", "self") not in saved


def test_tensors_packed_by_hooks_are_found():
    with torch.autograd.graph.save_on_cpu():
        y = nn.functional.gelu(torch.randn(4, requires_grad=True) * 2)
    saved, _ = kept(y)
    assert ("GeluBackward0", "self") in saved


def test_custom_functions_show_what_they_keep():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.beside = x * 2
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient * ctx.saved_tensors[0]

    saved, _ = kept(Square.apply(torch.randn(3, requires_grad=True)))
    fields = {field for node, field in saved if node == "SquareBackward"}
    assert fields == {"tensors", "beside"}


def test_a_graph_that_was_freed_keeps_nothing():
    y = torch.randn(4, requires_grad=True).exp().sum()
    y.backward()
    saved, _ = kept(y)
    assert saved == {}


def test_in_place_changes_after_saving_are_no_obstacle():
    x = torch.randn(4, requires_grad=True) * 1
    y = x.sin()
    x.add_(1)
    saved, _ = kept(y)
    assert ("SinBackward0", "self") in saved


def test_backward_and_grad_are_both_observed():
    calls = []

    @contextlib.contextmanager
    def around(call):
        calls.append((len(call.roots), call.accumulates, call.creates_graph, call.is_restricted))
        yield

    x = torch.randn(3, requires_grad=True)
    with observe_backward(around):
        x.sum().backward()
        torch.autograd.grad((x * 2).sum(), x, create_graph=True)
        x.sum().backward(inputs=[x])
    x.sum().backward()
    assert calls == [
        (1, True, False, False),
        (1, False, True, False),
        (1, True, False, True),
    ]


def test_several_observe_and_leave_in_any_order():
    original = torch.autograd._engine_run_backward
    heard = []

    def listener(name):
        @contextlib.contextmanager
        def around(call):
            heard.append(name)
            yield

        return contextlib.ExitStack(), around

    (first, one), (second, two) = listener("first"), listener("second")
    first.enter_context(observe_backward(one))
    second.enter_context(observe_backward(two))
    torch.zeros(1, requires_grad=True).backward()
    first.close()
    torch.zeros(1, requires_grad=True).backward()
    second.close()
    assert heard == ["first", "second", "second"]
    assert torch.autograd._engine_run_backward is original


def test_the_engine_is_put_back_after_an_error():
    original = torch.autograd._engine_run_backward
    with pytest.raises(ZeroDivisionError), observe_backward(lambda call: 1 / 0):
        torch.zeros(1, requires_grad=True).backward()
    assert torch.autograd._engine_run_backward is original


def test_a_torch_without_the_engine_call_is_named(monkeypatch):
    monkeypatch.delattr(torch.autograd, "_engine_run_backward")
    with pytest.raises(TorchInterfaceError, match="_engine_run_backward"):
        with observe_backward(lambda call: contextlib.nullcontext()):
            pass
