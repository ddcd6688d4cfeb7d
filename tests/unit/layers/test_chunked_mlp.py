"""Two linear layers in chunks: PyTorch's numbers, without the middle."""

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import legroom
from legroom.errors import UsageError
from legroom.layers import POINTWISE, ChunkedMLP, _chunked_mlp, chunked_mlp, pointwise_name
from legroom.meter import PeakGauge

TENSORS = ("value", "up", "up_bias", "gate", "gate_bias", "down", "down_bias")


def plain(value, up, down, *, up_bias, down_bias, gate, gate_bias, activation):
    """What it stands for."""
    function, hidden = POINTWISE[activation].function, F.linear(value, up, up_bias)
    if gate is None:
        return F.linear(function(hidden), down, down_bias)
    return F.linear(function(F.linear(value, gate, gate_bias)) * hidden, down, down_bias)


def made_up(rows, width, hidden, out, *, dtype=torch.float64, without=(), seed=0):
    """The tensors of a block; weights small enough for activations to be where they bend."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape, scale=1.0):
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (scale * values).to(dtype)

    tensors = {
        "value": numbers(*rows, width),
        "up": numbers(hidden, width, scale=width**-0.5),
        "up_bias": numbers(hidden),
        "gate": numbers(hidden, width, scale=width**-0.5),
        "gate_bias": numbers(hidden),
        "down": numbers(out, hidden, scale=hidden**-0.5),
        "down_bias": numbers(out),
    }
    return {name: None if name in without else each for name, each in tensors.items()}


def gradients(function, tensors, activation, frozen=()):
    """The result, and the gradient of all that is not frozen, of a sum with uneven weights."""
    leaves = {
        name: each if each is None else each.detach().clone().requires_grad_(name not in frozen)
        for name, each in tensors.items()
    }
    made = function(**leaves, activation=activation)
    if made.requires_grad:
        weights = torch.linspace(-1, 2, made.numel(), dtype=torch.float64).view(made.shape)
        made.backward(weights.to(made.dtype))
    return made.detach(), {
        name: each.grad for name, each in leaves.items() if each is not None and each.requires_grad
    }


@contextlib.contextmanager
def rows_of(count):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_chunked_mlp, "_ROWS", count)
        yield


@st.composite
def blocks(draw):
    width, hidden, out = draw(st.tuples(*[st.integers(1, 7)] * 3))
    rows = draw(st.lists(st.integers(0, 5), max_size=3))
    without = draw(st.sets(st.sampled_from(["up_bias", "gate", "gate_bias", "down_bias"])))
    without |= {"gate_bias"} if "gate" in without else set()
    seed = draw(st.integers(0, 99))
    tensors = made_up(rows, width, hidden, out, without=without, seed=seed)
    if draw(st.booleans()):  # as a layer has it that is stored the other way round
        tensors["up"] = tensors["up"].t().contiguous().t()
        tensors["value"] = tensors["value"].transpose(0, -1).contiguous().transpose(0, -1)
    frozen = draw(st.sets(st.sampled_from(TENSORS)))
    return tensors, draw(st.sampled_from(list(POINTWISE))), frozen


@settings(deadline=None, max_examples=150)
@given(blocks(), st.integers(1, 5))
def test_results_and_gradients_are_those_of_pytorch_in_float64(block, num_rows):
    with rows_of(num_rows):
        made, found = gradients(chunked_mlp, *block)
    expected_made, expected = gradients(plain, *block)
    torch.testing.assert_close(made, expected_made)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient)


@pytest.mark.parametrize("activation", POINTWISE)
@pytest.mark.parametrize("without", [("gate", "gate_bias"), ()], ids=["no gate", "gate"])
def test_float32_is_as_close_to_float64_as_pytorch(activation, without):
    exact = made_up((300,), 24, 48, 16, without=without)
    narrow = {name: each if each is None else each.float() for name, each in exact.items()}
    with rows_of(64):
        _, found = gradients(chunked_mlp, narrow, activation)
    _, theirs = gradients(plain, narrow, activation)
    _, expected = gradients(plain, exact, activation)
    for name, gradient in expected.items():
        allowed = max(1e-6 * gradient.norm(), 3 * (theirs[name].double() - gradient).norm())
        assert (found[name].double() - gradient).norm() <= allowed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_are_summed_up_in_float32(dtype):
    tensors = made_up((4096,), 16, 40, 16, dtype=dtype)
    with rows_of(16):
        made, found = gradients(chunked_mlp, tensors, "silu")
    exact = {name: each.double() for name, each in tensors.items()}
    _, expected = gradients(plain, exact, "silu")
    assert made.dtype is dtype
    for name, gradient in expected.items():
        assert found[name].dtype is dtype
        assert (found[name].double() - gradient).norm() <= 0.02 * gradient.norm(), name


def test_one_row_and_none_at_all():
    for rows in ((), (1,), (0,), (3, 0)):
        tensors = made_up(rows, 4, 6, 3)
        made, found = gradients(chunked_mlp, tensors, "gelu")
        assert made.shape == (*rows, 3)
        assert all(each.shape == tensors[name].shape for name, each in found.items())
        if 0 in rows:
            assert not any(each.any() for name, each in found.items() if name != "value")


def test_a_weight_that_is_used_twice_gets_both_gradients():
    tensors = made_up((9,), 5, 5, 5, without=("up_bias", "gate", "gate_bias", "down_bias"))
    found = []
    for function in (chunked_mlp, plain):
        tied = tensors["up"].clone().requires_grad_()
        given = {**tensors, "up": tied, "down": tied}
        function(**given, activation="tanh").square().sum().backward()
        found.append(tied.grad)
    torch.testing.assert_close(*found)


def test_frozen_weights_get_no_gradient_computed():
    operands = list(made_up((5,), 4, 6, 3).values())
    for place in range(7):
        wanted = [other == place for other in range(7)]
        made = torch.ops.legroom.chunked_mlp_backward(
            wanted, torch.ones(5, 3, dtype=torch.float64), *operands, "gelu"
        )
        assert [each.numel() for each in made] == [
            operands[place].numel() if is_wanted else 0 for is_wanted in wanted
        ]


def test_under_autocast_it_is_as_narrow_as_linear_layers():
    tensors = made_up((8,), 16, 20, 12, dtype=torch.float32, without=("gate", "gate_bias"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made, found = gradients(chunked_mlp, tensors, "gelu")
        theirs, _ = gradients(plain, tensors, "gelu")
    assert made.dtype is theirs.dtype is torch.bfloat16
    torch.testing.assert_close(made, theirs)
    assert {each.dtype for each in found.values()} == {torch.float32}


def peak_bytes_of(call):
    gauge = PeakGauge(torch.device("cpu"))
    gauge.start()
    call()
    reading = gauge.stop()
    return reading.peak_bytes - reading.opening_bytes


@pytest.mark.parametrize(
    ("without", "dtype", "num_buffers"),
    [
        (("gate", "gate_bias"), torch.float32, 2),
        ((), torch.float32, 4),
        (("gate", "gate_bias"), torch.bfloat16, 3),
    ],
    ids=["no gate", "gate", "bfloat16"],
)
def test_the_middle_is_never_there(without, dtype, num_buffers):
    """Beside what comes out, in either direction: chunks of the middle, and sums in float32."""
    rows, width, hidden = 4096, 32, 512
    tensors = made_up((rows,), width, hidden, width, dtype=dtype, without=without)
    leaves = {
        name: each if each is None else each.requires_grad_() for name, each in tensors.items()
    }
    gradient = torch.ones(rows, width, dtype=dtype)
    itemsize = gradient.itemsize
    chunk_bytes = 256 * hidden * itemsize
    weight_bytes = sum(
        e.numel() * itemsize for n, e in leaves.items() if e is not None and n != "value"
    )
    returned = 2 * gradient.nbytes + weight_bytes
    sums = 0 if itemsize == 4 else 2 * weight_bytes
    peak = peak_bytes_of(lambda: chunked_mlp(**leaves, activation="gelu").backward(gradient))
    assert peak <= returned + sums + (num_buffers + 0.5) * chunk_bytes
    plainly = peak_bytes_of(lambda: plain(**leaves, activation="gelu").backward(gradient))
    assert plainly >= 2 * rows * hidden * itemsize


def test_it_is_one_product_more_than_plain():
    """The cost that is claimed: 7 products instead of 6, with a gate 11 instead of 9."""
    for without, share in ((("gate", "gate_bias"), 7 / 6), ((), 11 / 9)):
        counts = []
        for function in (chunked_mlp, plain):
            with FlopCounterMode(display=False) as counter:
                gradients(function, made_up((512,), 8, 8, 8, without=without), "relu")
            counts.append(counter.get_total_flops())
        assert counts[0] == pytest.approx(share * counts[1])


class Block(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, value):
        return (value + self.block(value)).square().mean()


def test_it_can_be_fitted():
    torch.manual_seed(0)
    model, value = Block(ChunkedMLP(32, 128, gated=True)), torch.randn(600, 32)
    model(value).backward()
    expected = {name: param.grad.clone() for name, param in model.named_parameters()}
    model.zero_grad()
    handle = legroom.fit(model, budget="lowest")
    model(value).backward()
    for name, param in model.named_parameters():
        assert torch.equal(param.grad, expected[name]), name
    assert not handle.report().not_planned
    handle.undo()


def test_layers_are_taken_over_with_their_weights():
    up, gate, down = nn.Linear(6, 9), nn.Linear(6, 9, bias=False), nn.Linear(9, 4)
    block = ChunkedMLP.from_linears(up, nn.SiLU(), down, gate=gate)
    assert block.activation == "silu"
    assert {id(each) for each in block.parameters()} == {
        id(each) for layer in (up, gate, down) for each in layer.parameters()
    }
    value = torch.randn(2, 3, 6)
    torch.testing.assert_close(block(value), down(F.silu(gate(value)) * up(value)))
    assert "activation='silu'" in repr(block)


def test_one_of_its_own_has_the_names_of_its_layers():
    block = ChunkedMLP(6, 9, activation=F.relu, dtype=torch.float64)
    assert list(block.state_dict()) == ["up.weight", "up.bias", "down.weight", "down.bias"]
    assert block(torch.randn(5, 6, dtype=torch.float64)).shape == (5, 6)


@pytest.mark.parametrize(
    ("activation", "name"),
    [
        (nn.GELU("tanh"), "gelu_tanh"),
        (nn.ReLU(inplace=True), "relu"),
        (nn.Tanh(), "tanh"),
        (lambda x: x * torch.sigmoid(1.702 * x), "quick_gelu"),
        (nn.Softmax(-1), None),
        (nn.Dropout(0.5), None),
        (nn.Linear(2, 2), None),
    ],
)
def test_activations_are_known_by_what_they_compute(activation, name):
    assert pointwise_name(activation) == name


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"value": (3, 5)}, r"input of shape \(3, 5\) and weights of shapes \(6, 4\)"),
        ({"down": (3, 7)}, r"and \(3, 7\) do not fit"),
        ({"gate": (5, 4)}, r"gate of shape \(5, 4\) does not fit; expected \(6, 4\)"),
        ({"up_bias": (5,)}, r"bias of shape \(5,\) does not fit; expected \(6,\)"),
        ({"gate": None}, r"bias of shape \(6,\) does not fit; expected none"),
    ],
)
def test_what_does_not_fit_is_refused(changed, message):
    tensors = made_up((3,), 4, 6, 3)
    tensors |= {name: shape and torch.zeros(shape) for name, shape in changed.items()}
    with pytest.raises(UsageError, match=message):
        chunked_mlp(**tensors, activation="gelu")


def test_unknown_activations_and_layers_are_refused():
    with pytest.raises(UsageError, match=r"'gelo' is none that is known; expected one of gelu"):
        ChunkedMLP(4, 8, activation="gelo")
    with pytest.raises(UsageError, match=r"expected a torch.nn.Linear, not Conv1d"):
        ChunkedMLP.from_linears(nn.Conv1d(1, 1, 1), "gelu", nn.Linear(1, 1))
    with pytest.raises(UsageError, match=r"of shapes \(4, 3\) and \(3, 5\) do not fit"):
        ChunkedMLP.from_linears(nn.Linear(3, 4), "gelu", nn.Linear(5, 3))
    with pytest.raises(UsageError, match=r"torch.int64 has no gradient"):
        chunked_mlp(torch.zeros(2, 4, dtype=torch.int64), torch.zeros(6, 4), torch.zeros(4, 6))
