"""Which gradients take the place of what they are made from."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from legroom.capture import _in_place
from legroom.capture._in_place import note_in_place, write_in_place, written_into
from tests.unit.capture.test_fuse import joint_of


@pytest.fixture(autouse=True)
def _of_any_size(monkeypatch):
    monkeypatch.setattr(_in_place, "_FEWEST_BYTES", 1)


def weight(*shape):
    torch.manual_seed(0)
    return torch.randn(*shape, requires_grad=True)


def updated(function, *inputs):
    """Operations of backward that write into an operand, and the code they are part of."""
    code, _ = joint_of(function, *inputs)
    return [op.name.split(".")[1] for op in code.backward if op.updates], code


ACTIVATIONS = {
    "gelu": (F.gelu, "gelu_backward"),
    "gelu_tanh": (lambda value: F.gelu(value, approximate="tanh"), "gelu_backward"),
    "silu": (F.silu, "silu_backward"),
    "relu": (F.relu, "threshold_backward"),
    "tanh": (torch.tanh, "tanh_backward"),
    "sigmoid": (torch.sigmoid, "sigmoid_backward"),
    "leaky_relu": (F.leaky_relu, "leaky_relu_backward"),
    "hardtanh": (F.hardtanh, "hardtanh_backward"),
    "hardsigmoid": (F.hardsigmoid, "hardsigmoid_backward"),
    "elu": (F.elu, "elu_backward"),
    "softplus": (F.softplus, "softplus_backward"),
    "softmax": (lambda value: F.softmax(value, -1), "_softmax_backward_data"),
    "log_softmax": (lambda value: F.log_softmax(value, -1), "_log_softmax_backward_data"),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradient_of_an_activation_is_written_into_the_one_before(name):
    function, gradient = ACTIVATIONS[name]
    names, code = updated(
        lambda one, value, two: function(one @ value) @ two,
        weight(8, 8),
        weight(8, 8),
        weight(8, 8),
    )
    assert names == [gradient]
    (op,) = [each for each in code.backward if each.updates]
    assert op.writes == ()
    assert set(op.updates) <= set(op.reads)


def test_views_in_between_do_not_matter():
    def function(one, value, two):
        return F.gelu((one @ value).view(2, 4, 8)).view(8, 8) @ two

    names, _ = updated(function, weight(8, 8), weight(8, 8), weight(8, 8))
    assert names == ["gelu_backward"]


def test_sum_of_branches_is_written_into_one_of_them():
    def function(value, one, two):
        middle = value @ one
        return (middle @ two) + (middle @ two.T) + middle

    names, _ = updated(function, weight(8, 8), weight(8, 8), weight(8, 8))
    assert "add" in names


def test_what_is_handed_out_stays():
    # The gradient of the activation is that of an input, and its operand the caller's own.
    names, _ = updated(F.gelu, weight(8, 8))
    assert names == []


def test_what_two_read_stays():
    def function(value, one, two):
        return ((value @ one) * (value @ two)) @ one

    # The gradient of the product goes into the gradients of both of its factors.
    names, _ = updated(function, torch.randn(8, 8), weight(8, 8), weight(8, 8))
    assert names == []


def test_a_smaller_operand_is_not_written_into():
    def function(value, one, row):
        return ((value @ one) * row).sum(0) @ one

    names, _ = updated(function, weight(8, 8), weight(8, 8), weight(1, 8))
    assert "mul" not in names


def test_small_tensors_are_left_alone(monkeypatch):
    monkeypatch.setattr(_in_place, "_FEWEST_BYTES", 1 << 16)
    names, _ = updated(lambda one, two: F.gelu(one @ two) @ two, weight(8, 8), weight(8, 8))
    assert names == []


def test_results_have_one_storage_in_a_row():
    def function(one, two):
        return F.gelu(torch.tanh(F.silu(one @ two))) @ two

    names, code = updated(function, weight(8, 8), weight(8, 8))
    assert names == ["gelu_backward", "tanh_backward", "silu_backward"]
    assert len({op.updates for op in code.backward if op.updates}) == 1


def graph_of(operation, *values, **kwargs):
    """A graph that makes its first operand and applies an operation to it and the others."""
    graph = torch.fx.Graph()
    nodes = []
    for number, value in enumerate(values):
        nodes.append(graph.placeholder("tangents_1" if number == 0 else f"primals_{number}"))
        nodes[-1].meta["val"] = value
    made = graph.call_function(torch.ops.aten.clone.default, (nodes[0],))
    made.meta["val"] = values[0].clone()
    result = graph.call_function(operation, (made, *nodes[1:]), kwargs)
    result.meta["val"] = operation(values[0], *values[1:], **kwargs)
    last = graph.call_function(torch.ops.aten.sum.default, (result,))
    last.meta["val"] = result.meta["val"].sum()
    graph.output(last)
    return torch.fx.GraphModule(nn.Module(), graph), result


aten = torch.ops.aten


@pytest.mark.parametrize(
    "operation",
    [*_in_place._ANY, *_in_place._FIRST, *_in_place._ROWS],
    ids=str,
)
def test_same_bits_in_the_same_memory(operation):
    torch.manual_seed(0)
    grad, other = torch.randn(37, 129), torch.rand(37, 129).clamp(0.01, 0.99)
    further = {
        aten.where.self: None,
        aten.threshold_backward.default: (other, 0.5),
        aten.leaky_relu_backward.default: (other, 0.1, False),
        aten.hardtanh_backward.default: (other, 0.2, 0.8),
        aten.elu_backward.default: (1.0, 1.0, 1.0, False, other),
        aten.softplus_backward.default: (other, 1.0, 20.0),
        aten.masked_fill.Scalar: (other > 0.5, 2.0),
        aten.neg.default: (),
        aten._softmax_backward_data.default: (other, -1, torch.float32),
        aten._log_softmax_backward_data.default: (other.log(), -1, torch.float32),
    }
    if operation._overloadname == "Scalar":
        further.setdefault(operation, (3.0,))
    args = further.get(operation, (other,))
    if args is None:
        args, place = (other > 0.5, grad, other), 1
    else:
        args, place = (grad, *args), 0
    expected = operation(*args)
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"value_{number}") for number, _ in enumerate(args)]
    result = graph.call_function(operation, tuple(nodes))
    result.meta[_in_place._NOTE] = place
    graph.output(result)
    write_in_place(graph)
    graph.lint()
    written = torch.fx.GraphModule(nn.Module(), graph)(*args)
    assert written.data_ptr() == grad.data_ptr()
    assert torch.equal(written, expected)


def test_operand_is_found_where_it_stands():
    module, result = graph_of(aten.mul.Tensor, torch.randn(8, 8), torch.randn(8, 8))
    note_in_place(module)
    assert written_into(result).target is aten.clone.default
    assert written_into(next(iter(module.graph.nodes))) is None
