"""The last layer and its loss in one: PyTorch's numbers, without the logits."""

import contextlib

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import legroom
from legroom.errors import UsageError
from legroom.layers import LinearCrossEntropy, _linear_cross_entropy, linear_cross_entropy
from legroom.meter import PeakGauge


def plain(features, weight, target, *, bias=None, class_weight=None, z_loss=0.0, **options):
    """What it stands for; PyTorch has no z-loss."""
    logits = F.linear(features, weight, bias).flatten(0, -2)
    answers = target.flatten()
    reduction = options.pop("reduction", "mean")
    losses = F.cross_entropy(logits, answers, class_weight, reduction="none", **options)
    counted = answers != options.get("ignore_index", -100)
    losses = losses + z_loss * logits.logsumexp(1).square() * counted
    if reduction == "none":
        return losses.view(target.shape)
    if reduction == "sum":
        return losses.sum()
    if class_weight is None:
        return losses.sum() / counted.sum()
    return losses.sum() / class_weight[answers[counted]].sum()


@st.composite
def problems(draw):
    rows, width, classes = draw(st.tuples(*[st.integers(1, 9)] * 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))

    def numbers(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    target = torch.randint(classes, (2, rows), generator=generator)
    ignore_index = draw(st.sampled_from([-100, 0, classes - 1]))
    target[0, 0] = ignore_index if ignore_index < 0 or draw(st.booleans()) else target[0, 0]
    assume((target != ignore_index).any())
    tensors = {
        "bias": numbers(classes) if draw(st.booleans()) else None,
        "class_weight": numbers(classes).abs() + 0.1 if draw(st.booleans()) else None,
    }
    options = {
        "ignore_index": ignore_index,
        "reduction": draw(st.sampled_from(["none", "mean", "sum"])),
        "label_smoothing": draw(st.sampled_from([0.0, 0.1, 1.0])),
        "z_loss": draw(st.sampled_from([0.0, 1e-2])),
    }
    return numbers(2, rows, width), numbers(classes, width), target, tensors, options


def gradients(function, features, weight, target, tensors, options):
    leaves = {"features": features, "weight": weight, "bias": tensors["bias"]}
    leaves = {
        key: value.detach().clone().requires_grad_()
        for key, value in leaves.items()
        if value is not None
    }
    arguments = {**tensors, "bias": leaves.get("bias"), **options}
    loss = function(leaves["features"], leaves["weight"], target, **arguments)
    loss.sum().backward()
    return loss.detach(), {key: value.grad for key, value in leaves.items()}


@contextlib.contextmanager
def tiles_of(num_at_a_time):
    """So many rows, or classes, at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_linear_cross_entropy, "_TILE_BYTES", 0)
        patch.setattr(_linear_cross_entropy, "_FEWEST", num_at_a_time)
        yield


@settings(deadline=None, max_examples=60)
@given(problems(), st.integers(1, 5))
def test_losses_and_gradients_are_those_of_pytorch_in_float64(problem, num_at_a_time):
    with tiles_of(num_at_a_time):
        loss, found = gradients(linear_cross_entropy, *problem)
    expected_loss, expected = gradients(plain, *problem)
    torch.testing.assert_close(loss, expected_loss)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient)


def test_where_nothing_counts_it_is_as_with_pytorch():
    weight, target = torch.randn(5, 4), torch.zeros(3, dtype=torch.int64)
    leaves = [torch.randn(3, 4, requires_grad=True) for _ in range(2)]
    for leaf, function in zip(leaves, (linear_cross_entropy, plain_mean), strict=True):
        loss = function(leaf, weight, target, ignore_index=0)
        loss.backward()
        assert loss.isnan()
        assert not leaf.grad.any()


def plain_mean(features, weight, target, **options):
    return F.cross_entropy(F.linear(features, weight), target, **options)


def test_float32_is_close_to_float64():
    torch.manual_seed(0)
    features, weight = torch.randn(64, 32), torch.randn(1000, 32)
    target = torch.randint(1000, (64,))
    options = {"bias": None, "class_weight": None}, {}
    _, found = gradients(linear_cross_entropy, features, weight, target, *options)
    _, expected = gradients(plain, features.double(), weight.double(), target, *options)
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= 1e-5 * gradient.norm()


def test_bfloat16_is_summed_up_in_float32():
    torch.manual_seed(0)
    features, weight = torch.randn(4096, 16).bfloat16(), torch.randn(50, 16).bfloat16()
    target = torch.randint(50, (4096,))
    options = {"bias": None, "class_weight": None}, {}
    with tiles_of(16):
        loss, found = gradients(linear_cross_entropy, features, weight, target, *options)
    _, expected = gradients(plain, features.double(), weight.double(), target, *options)
    assert loss.dtype is torch.float32
    assert found["weight"].dtype is torch.bfloat16
    assert (found["weight"] - expected["weight"]).norm() <= 0.01 * expected["weight"].norm()


def test_under_autocast_it_is_the_linear_layer_that_is_narrow():
    features, weight = torch.randn(8, 16, requires_grad=True), torch.randn(20, 16)
    target = torch.randint(20, (8,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = linear_cross_entropy(features, weight, target)
        expected = F.cross_entropy(F.linear(features, weight).float(), target)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert features.grad.dtype is torch.float32


def test_the_logits_are_never_there():
    """GPT-2's vocabulary, fewer and narrower rows: plain has its logits three times at once."""
    features, weight = torch.randn(2048, 8, requires_grad=True), torch.randn(50257, 8)
    target = torch.randint(50257, (2048,))
    logits_bytes = 2048 * 50257 * 4
    gauge = PeakGauge(torch.device("cpu"))
    gauge.start()
    linear_cross_entropy(features, weight, target).backward()
    reading = gauge.stop()
    assert reading.peak_bytes - reading.opening_bytes <= 0.3 * logits_bytes


class Model(nn.Module):
    """Tied weights, and a loss that never sees logits."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(300, 32)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.loss = LinearCrossEntropy(ignore_index=0, label_smoothing=0.1)

    def forward(self, tokens):
        value = self.embedding(tokens)
        for layer in self.layers:
            value = value + F.gelu(layer(value))
        return self.loss(value[:, :-1], self.embedding.weight, tokens[:, 1:])


def test_it_can_be_fitted():
    torch.manual_seed(0)
    model, tokens = Model(), torch.randint(300, (8, 40))
    model(tokens).backward()
    expected = {name: param.grad.clone() for name, param in model.named_parameters()}
    model.zero_grad()
    handle = legroom.fit(model, budget="lowest")
    model(tokens).backward()
    for name, param in model.named_parameters():
        assert torch.equal(param.grad, expected[name]), name
    assert not handle.report().not_planned
    handle.undo()


def test_frozen_weights_get_no_gradient():
    features = torch.randn(3, 4, requires_grad=True)
    weight = torch.randn(5, 4)
    linear_cross_entropy(features, weight, torch.tensor([0, 1, 4])).backward()
    assert features.grad is not None
    assert weight.grad is None
    given = features.detach(), weight, None, torch.tensor([0, 1, 4]), None, -100, 0.0, 0.0
    backward = torch.ops.legroom.linear_cross_entropy_backward
    made = [backward(wants, torch.ones(3), torch.zeros(3), *given)[1] for wants in (True, False)]
    assert [each.numel() for each in made] == [weight.numel(), 0]  # and is not even computed


def test_the_module_says_what_it_does():
    assert "label_smoothing=0.1" in repr(LinearCrossEntropy(label_smoothing=0.1))
    module = LinearCrossEntropy(torch.ones(5))
    assert list(module.state_dict()) == ["class_weight"]


@pytest.mark.parametrize(
    ("features", "weight", "target", "options", "message"),
    [
        ((3, 4), (5, 3), (3,), {}, r"features of shape \(3, 4\) do not fit a weight"),
        ((3, 4), (5, 4), (4,), {}, r"target of shape \(4,\) does not fit"),
        ((3, 4), (5, 4), (3,), {"reduction": "median"}, "'median' is not one of none, mean, sum"),
    ],
)
def test_what_does_not_fit_is_refused(features, weight, target, options, message):
    given = torch.randn(features), torch.randn(weight), torch.zeros(target, dtype=torch.int64)
    with pytest.raises(UsageError, match=message):
        linear_cross_entropy(*given, **options)


def test_probabilities_as_targets_are_refused():
    with pytest.raises(UsageError, match="as large as the logits"):
        linear_cross_entropy(torch.randn(3, 4), torch.randn(5, 4), torch.rand(3, 5))
