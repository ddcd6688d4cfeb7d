"""Layers that keep their output: their gradients, what they keep, and when they keep the input."""

import copy

import pytest
import torch
from torch import nn

import legroom
from legroom import layers
from legroom.errors import UsageError

ACTIVATIONS = {
    "gelu": (nn.GELU(), layers.GELU()),
    "gelu tanh": (nn.GELU("tanh"), layers.GELU("tanh")),
    "silu": (nn.SiLU(), layers.SiLU()),
    "mish": (nn.Mish(), layers.Mish()),
    "softplus": (nn.Softplus(2.0, 15.0), layers.Softplus(2.0, 15.0)),
}


def normal(*shape, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def run(layer, value, gradient):
    """The output, and gradients of the input and of all parameters."""
    layer.zero_grad()
    value = value.detach().clone().requires_grad_()
    output = layer(value)
    output.backward(gradient.to(output.dtype))
    return output.detach(), [value.grad, *(each.grad for each in layer.parameters())]


def check_like(plain, ours, value, *, tolerance=2e-6):
    """The output is PyTorch's; gradients are as near to float64's as a few roundings."""
    gradient = torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
    output, found = run(ours, value, gradient)
    expected, usual = run(plain, value, gradient)
    torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)
    _, exact = run(copy.deepcopy(plain).double(), value.double(), gradient)
    for mine, theirs, best in zip(found, usual, exact, strict=True):
        allowed = max(tolerance * best.norm(), 20 * (theirs.double() - best).norm())
        assert (mine.double() - best).norm() <= allowed


def kept_bytes(layer, value):
    """Bytes kept for backward, beside the output and parameters."""
    value = value.clone().requires_grad_()
    sizes, others = {}, {each.data_ptr() for each in layer.parameters()}

    def pack(tensor):  # returning it would keep an output alive for good, by itself
        sizes[tensor.data_ptr()] = tensor.untyped_storage().nbytes()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = layer(value)
    return sum(size for place, size in sizes.items() if place not in {*others, output.data_ptr()})


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_activations_need_their_output_only(name, scale):
    plain, ours = ACTIVATIONS[name]
    value = normal(300, 257, scale=scale)
    check_like(plain, ours, value, tolerance=1e-5)
    assert kept_bytes(plain, value) >= value.nbytes
    assert kept_bytes(ours, value) <= -(-value.numel() // 8)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_ends_of_the_numbers(name):
    plain, ours = ACTIVATIONS[name]
    value = torch.tensor([-100.0, -30.0, -12.0, -5.0, -0.7518, -0.0, 0.0, 1e-30, 5.0, 12.0, 1e30])
    _, found = run(ours, value, torch.ones_like(value))
    _, expected = run(plain.double(), value.double(), torch.ones_like(value))
    plain.float()
    assert (found[0].double() - expected[0]).abs().max() <= 5e-4
    assert found[0].isfinite().all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_is_not_a_number_stays_so(name):
    _, ours = ACTIVATIONS[name]
    value = normal(64)
    value[3] = torch.nan
    output, found = run(ours, value, torch.ones_like(value))
    assert output.isnan().sum() == 1
    assert found[0][3].isnan()
    assert found[0].isnan().sum() == 1


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(
    "value",
    [
        normal(40, 30).t(), normal(2, 3, 8, 8).to(memory_format=torch.channels_last),
        normal(1).expand(50, 4), normal(40, 30)[:, ::2], normal(0, 5), normal(9).double(),
        normal(33, 5).bfloat16(),
    ],
    ids=["turned", "channels last", "expanded", "with gaps", "empty", "float64", "bfloat16"],
)  # fmt: skip
def test_layouts_and_types(name, value):
    plain, ours = ACTIVATIONS[name]
    gradient = torch.ones(value.shape)
    output, found = run(ours, value, gradient)
    expected, usual = run(plain, value, gradient)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(found[0], usual[0], rtol=2e-2, atol=5e-4)


def norms(bias=True):
    return {
        "layer": (nn.LayerNorm(48, bias=bias), layers.LayerNorm(48, bias=bias), (64, 48)),
        "layers": (nn.LayerNorm((6, 8)), layers.LayerNorm((6, 8)), (5, 7, 6, 8)),
        "plain layer": (
            nn.LayerNorm(48, elementwise_affine=False),
            layers.LayerNorm(48, elementwise_affine=False),
            (64, 48),
        ),
        "rms": (nn.RMSNorm(48, eps=1e-6), layers.RMSNorm(48, eps=1e-6), (4, 16, 48)),
        "group": (nn.GroupNorm(4, 12), layers.GroupNorm(4, 12), (5, 12, 6, 7)),
        "batch": (
            nn.BatchNorm2d(12),
            layers.InPlaceBatchNorm(12, activation="identity"),
            (9, 12, 6, 7),
        ),
        "batch 1d": (
            nn.Sequential(nn.BatchNorm1d(12), nn.LeakyReLU(0.1)),
            layers.InPlaceBatchNorm(12, activation="leaky_relu", slope=0.1),
            (64, 12),
        ),
        "batch elu": (
            nn.Sequential(nn.BatchNorm2d(12), nn.ELU()),
            layers.InPlaceBatchNorm(12, activation="elu"),
            (9, 12, 6, 7),
        ),
    }


def with_weights(plain, ours, *, smallest=0.3):
    """The same weights for both, away from nothing; of either sign."""
    generator = torch.Generator().manual_seed(3)
    state = {}
    for theirs, (name, _) in zip(plain.parameters(), ours.named_parameters(), strict=True):
        drawn = torch.randn(theirs.shape, generator=generator)
        if name == "weight":
            drawn = drawn.sign() * drawn.abs().clamp(min=smallest)
        theirs.data.copy_(drawn)
        state[name] = theirs.detach().clone()
    ours.load_state_dict(state, strict=False)


@pytest.mark.parametrize("name", norms())
def test_norms_need_their_output_only(name):
    plain, ours, shape = norms()[name]
    with_weights(plain, ours)
    value = normal(*shape, scale=3.0) + 0.5
    check_like(plain, ours, value, tolerance=1e-5)
    assert kept_bytes(ours, value) <= value.nbytes // 8


@pytest.mark.parametrize("name", ["layer", "rms", "group", "batch", "batch 1d"])
def test_a_weight_near_nothing_keeps_the_input(name):
    plain, ours, shape = norms()[name]
    with_weights(plain, ours)
    for layer in (plain, ours):
        next(layer.parameters()).data[1] = 1e-9
    value = normal(*shape)
    check_like(plain, ours, value, tolerance=1e-5)
    assert kept_bytes(ours, value) >= value.nbytes


def test_a_batch_norms_statistics_are_pytorchs():
    plain, ours, shape = norms()["batch"]
    for _ in range(3):
        plain(normal(*shape)), ours(normal(*shape))
    for key, theirs in plain.state_dict().items():
        assert torch.equal(ours.state_dict()[key], theirs), key
    plain.eval(), ours.eval()
    assert torch.equal(ours(normal(*shape)), plain(normal(*shape)))
    ours.load_state_dict(plain.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "relu"}, "activation 'relu' cannot be undone"),
        ({"slope": 0.0}, "slope 0.0 cannot be undone"),
    ],
)
def test_what_cannot_be_undone_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        layers.InPlaceBatchNorm(4, **options)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("shape", [(64, 64), (3, 5), (0, 4)])
def test_dropout_has_pytorchs_bits_and_keeps_one_for_each(p, shape):
    value, gradient = normal(*shape), torch.ones(shape)
    torch.manual_seed(5)
    expected, usual = run(nn.Dropout(p), value, gradient)
    torch.manual_seed(5)
    output, found = run(layers.Dropout(p), value, gradient)
    assert torch.equal(output, expected)
    assert torch.equal(found[0], usual[0])
    if 0 < p < 1:
        assert kept_bytes(layers.Dropout(p), value) == -(-value.numel() // 8)


class Written(nn.Module):
    """An activation as people write it."""

    def forward(self, value):
        inner = 0.7978845608028654 * (value + 0.044715 * value**3)
        return 0.5 * value * (1 + torch.tanh(inner))


class NewGELUActivation(Written):
    """The same under the name that others give it."""


class MishLike(nn.Module):
    """Something else that looks like one."""

    def forward(self, value):
        return value * 2


def model_to_swap():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.SiLU(), nn.GroupNorm(2, 8),
        nn.Flatten(), nn.Linear(8 * 36, 32), nn.LayerNorm(32), NewGELUActivation(), nn.Dropout(0.2),
        nn.RMSNorm(32), Written(), MishLike(), nn.Linear(32, 4),
    )  # fmt: skip


def test_swapping_moves_the_weights_and_changes_nothing():
    model, value = model_to_swap(), normal(16, 3, 8, 8)
    plain = copy.deepcopy(model)
    before = dict(model.named_parameters())
    assert legroom.swap(model) == ["1", "2", "3", "6", "7", "8", "9"]
    assert all(model.get_parameter(name) is each for name, each in before.items())
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert type(model[7]) is layers.GELU
    assert type(model[10]) is Written  # nothing in its name says so
    gradient = torch.ones(16, 4)
    torch.manual_seed(1)
    output, found = run(model, value, gradient)
    torch.manual_seed(1)
    expected, usual = run(plain, value, gradient)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(found, usual, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4 * theirs.abs().max().item())
    assert legroom.swap(model) == []


def test_a_layer_that_is_used_twice_stays_one():
    shared = nn.Dropout(0.1)
    model = nn.Sequential(shared, nn.Linear(4, 4), shared)
    assert legroom.swap(model) == ["0", "2"]
    assert model[0] is model[2]


def test_layers_with_hooks_and_subclasses_stay():
    class Own(nn.GELU):
        pass

    model = nn.Sequential(nn.GELU(), Own(), nn.GELU())
    model[0].register_forward_hook(lambda *args: None)
    assert legroom.swap(model) == ["2"]


def test_only_models_can_be_swapped():
    with pytest.raises(UsageError, match=r"write legroom\.layers\.GELU in its place"):
        legroom.swap(nn.GELU())
    with pytest.raises(UsageError, match="not of int"):
        legroom.swap(3)


def test_a_swapped_model_can_be_fitted():
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64))
    legroom.swap(model)
    plain = copy.deepcopy(model)
    value = normal(512, 64)
    handle = legroom.fit(model, budget="lowest")
    for each in (model, plain):
        for _ in range(2):
            each.zero_grad()
            each(value).square().mean().backward()
    handle.undo()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6)
