"""LSTM layers as operations of ours: eager's bits, eager's bytes, one node for each layer."""

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import default_partition
from torch._subclasses.fake_tensor import FakeTensorMode

from legroom.capture import _rnn
from legroom.capture._rnn import (
    lstm_layer,
    lstm_layer_backward,
    lstm_workspace_bytes,
    lstm_workspace_read,
    rnn_operations,
)

LENGTH, BATCH, WIDTH, HIDDEN = 4, 3, 6, 5

SHAPES = {
    "one layer": {},
    "two layers": {"num_layers": 2},
    "bidirectional": {"bidirectional": True},
    "two bidirectional layers": {"num_layers": 2, "bidirectional": True},
    "batch first": {"batch_first": True, "num_layers": 2},
    "no bias": {"bias": False},
    "dropout": {"num_layers": 2, "dropout": 0.3},
}


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def draw_input(lstm: nn.LSTM, *, is_batched: bool = True) -> torch.Tensor:
    if not is_batched:
        return torch.randn(LENGTH, WIDTH)
    order = (BATCH, LENGTH) if lstm.batch_first else (LENGTH, BATCH)
    return torch.randn(*order, WIDTH)


def draw_states(lstm: nn.LSTM, *, is_batched: bool = True):
    num_states = lstm.num_layers * (2 if lstm.bidirectional else 1)
    shape = (num_states, BATCH, HIDDEN) if is_batched else (num_states, HIDDEN)
    return torch.randn(shape), torch.randn(shape)


def run_step(lstm, x, states=None) -> list[torch.Tensor]:
    """Outputs, both last states, and every gradient, of one run from the same random state."""
    torch.manual_seed(1)
    for param in lstm.parameters():
        param.grad = None
    x = x.clone().requires_grad_()
    leaves = [] if states is None else [each.clone().requires_grad_() for each in states]
    output, (hy, cy) = lstm(x, tuple(leaves) or None)
    weights = torch.linspace(-1, 1, output.numel()).view(output.shape)
    ((output * weights).sum() + hy.square().sum() + cy.sum()).backward()
    params = [param.grad for param in lstm.parameters()]
    return [output, hy, cy, x.grad, *params, *(each.grad for each in leaves)]


def assert_same_bits(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


@pytest.mark.parametrize("is_batched", [True, False], ids=["batched", "unbatched"])
@pytest.mark.parametrize("has_states", [True, False], ids=["states", "no states"])
@pytest.mark.parametrize("shape", SHAPES)
def test_eager_results_have_the_same_bits(shape, has_states, is_batched):
    lstm = nn.LSTM(WIDTH, HIDDEN, **SHAPES[shape])
    x = draw_input(lstm, is_batched=is_batched)
    states = draw_states(lstm, is_batched=is_batched) if has_states else None
    expected = run_step(lstm, x, states)
    with rnn_operations("bitwise"):
        assert_same_bits(run_step(lstm, x, states), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_captured_results_have_the_same_bits(shape):
    lstm = nn.LSTM(WIDTH, HIDDEN, **SHAPES[shape])
    x, states = draw_input(lstm), draw_states(lstm)
    expected = run_step(lstm, x, states)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lstm, backend=counter, fullgraph=True)
    with rnn_operations("bitwise"):
        assert_same_bits(run_step(compiled, x, states), expected)
    assert counter.frame_count == 1
    assert_same_bits(run_step(compiled, x, states), expected)
    assert counter.frame_count == 1, "compiled anew outside the context"


def test_wide_layer_has_the_same_bits():
    lstm = nn.LSTM(80, 96, bidirectional=True)
    x = torch.randn(20, 8, 80)
    expected = run_step(lstm, x)
    with rnn_operations("bitwise"):
        compiled = torch.compile(lstm, backend="aot_eager", fullgraph=True)
        assert_same_bits(run_step(compiled, x), expected)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_results_without_gradients_have_the_same_bits(is_compiled, is_training):
    lstm = nn.LSTM(WIDTH, HIDDEN, num_layers=2, batch_first=True).train(is_training)
    x = draw_input(lstm)
    with torch.no_grad():
        expected, expected_states = lstm(x)
        with rnn_operations("bitwise"):
            ours = torch.compile(lstm, backend="aot_eager", fullgraph=True) if is_compiled else lstm
            output, states = ours(x)
    assert_same_bits([output, *states], [expected, *expected_states])


def test_eval_mode_still_has_gradients():
    lstm = nn.LSTM(WIDTH, HIDDEN, num_layers=2, dropout=0.5).eval()
    x = draw_input(lstm)
    expected = run_step(lstm, x)
    with rnn_operations("bitwise"):
        assert_same_bits(run_step(lstm, x), expected)


def test_unused_outputs_need_no_gradients():
    lstm = nn.LSTM(WIDTH, HIDDEN)
    x = draw_input(lstm)

    def gradients(model):
        lstm.zero_grad()
        model(x)[1][0].sum().backward()
        return [param.grad for param in lstm.parameters()]

    expected = gradients(lstm)
    with rnn_operations("bitwise"):
        assert_same_bits(gradients(lstm), expected)
        assert_same_bits(gradients(torch.compile(lstm, backend="aot_eager")), expected)


def count_nodes(lstm: nn.LSTM, num_steps: int, exactness: str = "bitwise") -> int:
    """Nodes of the joint graph, of which there is one."""
    torch._dynamo.reset()
    counts = []

    def count(graph, inputs, **options):
        counts.append(len(graph.graph.nodes))
        return default_partition(graph, inputs, **options)

    def keep(graph, _):
        return make_boxed_func(graph)

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep, partition_fn=count)
    with rnn_operations(exactness):
        x = torch.randn(num_steps, 2, WIDTH, requires_grad=True)
        torch.compile(lstm, backend=backend, fullgraph=True)(x)[0].sum().backward()
    assert len(counts) == 1
    return counts[0]


def test_time_steps_do_not_grow_the_graph():
    lstm = nn.LSTM(WIDTH, HIDDEN, bidirectional=True)
    assert count_nodes(lstm, 3) == count_nodes(lstm, 60)


WORKSPACES = [
    (1, 1, 1, 1),
    (4, 3, 6, 5),
    (10, 3, 6, 5),
    (7, 130, 40, 70),
    (5, 4, 16, 256),
    (5, 4, 300, 64),
    (3, 2, 512, 32),
    (20, 8, 96, 96),
]


@pytest.mark.parametrize("sizes", WORKSPACES)
def test_workspace_formula_is_what_onednn_allocates(sizes):
    assert lstm_workspace_bytes(*sizes) == _rnn._measure_workspace_bytes(*sizes)


def test_wrong_formula_is_noticed_and_measured(monkeypatch):
    real_bytes = lstm_workspace_bytes(4, 3, 6, 5)
    monkeypatch.setattr(_rnn, "_workspace_formula", lambda *_: 1)
    monkeypatch.setattr(_rnn, "_is_formula_right", _rnn._is_formula_right.__wrapped__)
    assert lstm_workspace_bytes(4, 3, 6, 5) == real_bytes


@pytest.mark.parametrize("is_training", [True, False])
def test_fake_results_are_as_large_as_real_ones(is_training):
    def run():
        x, states = torch.ones(4, 3, 6), (torch.ones(3, 5), torch.ones(3, 5))
        weights = [torch.ones(20, 6), torch.ones(20, 5), torch.ones(20), torch.ones(20)]
        outputs = lstm_layer(x, weights, *states, False, is_training)
        return [(each.shape, each.stride(), each.dtype) for each in outputs]

    with FakeTensorMode():
        fake = run()
    assert fake == run()


def saved_bytes(lstm: nn.LSTM, x: torch.Tensor) -> int:
    storages = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        lstm(x)
    return sum(storages.values())


def test_backward_keeps_what_eager_keeps():
    lstm = nn.LSTM(WIDTH, HIDDEN, num_layers=2, bidirectional=True)
    x = draw_input(lstm)
    expected = saved_bytes(lstm, x)
    with rnn_operations("bitwise"):
        assert saved_bytes(lstm, x) == expected


@pytest.mark.parametrize(
    "case", ["projection", "double", "packed", "autocast"], ids=lambda name: name
)
def test_other_paths_are_left_alone(case):
    dtype = torch.float64 if case == "double" else torch.float32
    lstm = nn.LSTM(WIDTH, HIDDEN, proj_size=2 if case == "projection" else 0, dtype=dtype)
    x = draw_input(lstm).to(dtype)
    if case == "packed":
        x = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 3, 2]))
    calls = []
    with rnn_operations("bitwise"), torch.autocast("cpu", enabled=case == "autocast"):
        original = _rnn._forward_of_torch
        _rnn._forward_of_torch = lambda *args: calls.append(args)
        try:
            lstm(x)
        finally:
            _rnn._forward_of_torch = original
    assert len(calls) == 1


def test_wrong_input_is_refused_by_torch():
    lstm = nn.LSTM(WIDTH, HIDDEN)
    with (
        rnn_operations("bitwise"),
        pytest.raises(RuntimeError, match="must be equal to input_size"),
    ):
        lstm(torch.randn(LENGTH, BATCH, WIDTH + 1))


def test_forward_is_restored_after_an_error():
    def fail():
        with rnn_operations("bitwise"):
            assert nn.LSTM.forward is not before[0]
            raise KeyError

    before = nn.LSTM.forward, nn.GRU.forward
    with pytest.raises(KeyError):
        fail()
    assert (nn.LSTM.forward, nn.GRU.forward) == before
    assert not torch._dynamo.config.allow_rnn


@pytest.mark.parametrize("needs_gradient", [True, False])
def test_rounding_is_close_to_eager(needs_gradient):
    lstm = nn.LSTM(WIDTH, HIDDEN)
    x = draw_input(lstm).requires_grad_(needs_gradient)

    def gradients(model):
        lstm.zero_grad()
        model(x)[0].square().sum().backward()
        return [param.grad for param in lstm.parameters()]

    expected = gradients(lstm)
    with rnn_operations("rounding"):
        ours = gradients(torch.compile(lstm, backend="aot_eager", fullgraph=True))
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("exactness", ["bitwise", "rounding"])
def test_a_longer_sequence_makes_no_larger_graph(exactness):
    lstm = nn.LSTM(WIDTH, HIDDEN)
    assert count_nodes(lstm, 6, exactness) == count_nodes(lstm, 3, exactness)


@pytest.mark.parametrize("is_reverse", [False, True])
@pytest.mark.parametrize("shape", [(4, 3, 10, 7), (6, 2, 5, 64), (3, 40, 130, 32)])
def test_backward_reads_only_parts_of_the_workspace(shape, is_reverse):
    num_steps, batch, input_size, hidden_size = shape
    x = torch.randn(num_steps, batch, input_size)
    weights = [torch.randn(4 * hidden_size, width) for width in (input_size, hidden_size)]
    weights += [torch.randn(4 * hidden_size), torch.randn(4 * hidden_size)]
    hx, cx = torch.randn(batch, hidden_size), torch.randn(batch, hidden_size)
    outputs = lstm_layer(x, weights, hx, cx, is_reverse, True)
    gradients = [torch.randn_like(each) for each in outputs[:3]]

    def backward(workspace):
        given = [*(each.clone() for each in outputs[:3]), workspace]
        return lstm_layer_backward(x, weights, hx, cx, given, gradients, is_reverse)

    expected = backward(outputs[3].clone())
    parts = lstm_workspace_read(*shape, is_reverse=is_reverse)
    rest = torch.full_like(outputs[3], 255)
    for first, count in parts:
        rest[first : first + count] = outputs[3][first : first + count]
    assert_same_bits(backward(rest), expected)
    for left_out in parts:
        rest = outputs[3].clone()
        rest[left_out[0] : sum(left_out)] = 255
        assert any(each.isnan().any() for each in backward(rest))


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
@pytest.mark.parametrize("width", [10, 32])
def test_other_recurrent_layers_have_the_same_bits(kind, width):
    layer = kind(width, width, bidirectional=True)
    x = torch.randn(5, 3, width)

    def gradients(model):
        layer.zero_grad()
        output, last = model(x)
        (output.square().sum() + last.sum()).backward()
        return [output, last, *(param.grad for param in layer.parameters())]

    expected = gradients(layer)
    with rnn_operations("bitwise"):
        assert_same_bits(gradients(torch.compile(layer, backend="aot_eager")), expected)
