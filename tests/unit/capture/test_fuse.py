"""Which operations of a joint graph become one."""

import json

import pytest
import torch
from torch import nn

from legroom.capture import _fuse, read_joint_graph
from legroom.capture._dynamo import boxed, default_partition, trace_joint
from legroom.capture._fused import FUSED


@pytest.fixture(autouse=True)
def _of_any_size(monkeypatch):
    monkeypatch.setattr(_fuse, "_FEWEST_ELEMENTS", 1)


def joint_of(function, *inputs):
    """The code of a function's joint graph and its fused operations: name, given, operations."""
    seen = []

    def partition(joint, joint_inputs, *, num_fwd_outputs, **rest):
        code = read_joint_graph(joint, num_fwd_outputs, module_path=lambda key: None, root="")
        fused = [
            ([str(each) for each in node.args[0]], [step[0] for step in json.loads(node.args[1])])
            for node in joint.graph.nodes
            if node.target is FUSED
        ]
        seen.append((code, fused))
        joint.graph.lint()
        return default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **rest)

    def backend(graph, example_inputs):
        def run(graph, inputs):
            return boxed(lambda args: graph(*args))

        return trace_joint(
            graph, tuple(example_inputs), partition=partition,
            make_forward=run, make_backward=run, make_inference=run,
        )  # fmt: skip

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    result = compiled(*inputs)
    result.sum().backward()
    ((code, fused),) = seen
    return code, fused


def short(operations):
    return [name.split(".")[1] for name in operations]


def kept_bytes(code):
    """Bytes that forward makes and backward reads, everything being held."""
    made = {storage for op in code.forward for storage in op.writes}
    read = {storage for op in code.backward for storage in op.reads}
    return sum(code.storages[each].num_bytes for each in made & read)


def test_written_out_gelu_keeps_two_tensors():
    linear = nn.Linear(8, 32)

    def gelu(x):
        y = linear(x)
        inner = 0.79788 * (y + 0.044715 * torch.pow(y, 3.0))
        return (0.5 * y * (1.0 + torch.tanh(inner))) @ linear.weight

    x = torch.randn(16, 8)
    code, fused = joint_of(gelu, x)
    assert short(fused[0][1]) == ["pow", "mul", "add", "mul", "tanh"]
    assert short(fused[1][1]) == ["mul", "add", "mul"]
    assert len(fused) == 3  # all of backward is one
    sizes = 16 * 32 * 4
    # y, tanh's result, and the product's other operand.
    assert kept_bytes(code) == 3 * sizes


def test_gradients_that_are_added_up_one_by_one_are_not_kept_for_it():
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def branches(x):
        h = layers[0](x)
        return layers[1](h).tanh() + layers[2](h).tanh() + layers[3](h).tanh()

    _, fused = joint_of(branches, torch.randn(16, 8))
    for _, operations in fused:
        assert short(operations).count("add") < 2 or "tanh" in short(operations)


def test_what_would_keep_more_stays_apart():
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def product(x):
        a, b, c = (layer(x) for layer in layers)
        return (a + b) * c

    code, fused = joint_of(product, torch.randn(16, 8))
    assert fused == []
    assert kept_bytes(code) == 2 * 16 * 8 * 4  # a + b, and c; not a and b


def test_what_a_caller_gets_is_there():
    def both(x):
        doubled = x * 2
        return doubled, (doubled + 1).neg()

    x = torch.randn(4, 4, requires_grad=True)
    _, fused = joint_of(lambda x: torch.stack(both(x)).sum(0), x)
    assert any(short(operations)[-1] == "neg" for _, operations in fused)


def test_broadcast_operands_are_fused_where_four_runs_serve_them():
    weight = nn.Parameter(torch.randn(64))

    def scaled(x):
        y = x @ x.transpose(1, 2) @ x
        mean = y.pow(2).mean(-1, keepdim=True)
        return (weight * (y * torch.rsqrt(mean + 1e-6))) @ x.transpose(1, 2)

    _, fused = joint_of(scaled, torch.randn(2, 5, 64, requires_grad=True))
    assert any(short(operations) == ["mul", "mul"] for _, operations in fused)

    column, table = torch.randn(2, 1, 8), torch.randn(5, 8)

    def crossed(x):
        return ((x @ x.transpose(1, 2) @ x + column) * table) @ x.transpose(1, 2)

    _, fused = joint_of(crossed, torch.randn(2, 5, 8, requires_grad=True))
    assert any(short(operations) == ["add", "mul"] for _, operations in fused)

    checked = torch.randn(2, 1, 5, 1, 2)

    def every_other(x):
        return (x @ x.transpose(3, 4) @ x + checked).neg() @ x.transpose(3, 4)

    _, fused = joint_of(every_other, torch.randn(2, 3, 5, 4, 2, requires_grad=True))
    assert ["add", "neg"] not in [short(operations) for _, operations in fused]


def test_a_column_and_a_row_are_added_in_one():
    key = nn.Parameter(torch.randn(8, 8))

    def attention(x):
        pairs = (x @ key).unsqueeze(2) + x.unsqueeze(1)
        return torch.tanh(pairs + 0.5) @ key

    _, fused = joint_of(attention, torch.randn(2, 40, 8, requires_grad=True))
    assert any(short(operations) == ["add", "add", "tanh"] for _, operations in fused)


def test_other_layouts_stay_apart():
    def turned(x):
        y = x @ x
        return ((y + y.t()) * 2) @ x

    _, fused = joint_of(turned, torch.randn(6, 6, requires_grad=True))
    assert ["add", "mul"] not in [short(operations) for _, operations in fused]


def test_long_chains_are_cut():
    def chain(x):
        y = x @ x
        for number in range(100):
            y = y * (1 + number / 100) + 0.1
        return y @ x

    _, fused = joint_of(chain, torch.randn(6, 6, requires_grad=True))
    assert len(fused) > 2
    assert all(len(operations) <= 40 for _, operations in fused)
