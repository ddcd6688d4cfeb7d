"""Random small models: branches, shared weights, norms, dropout, attention, views, buffers.

`recipes()` draws a `Recipe`, which reads like the model it makes; `build(recipe)` makes it. A layer
knows the shape it works on: an image (channels, height, width), a sequence (length, width) or a
vector (width).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

Shape = tuple[int, ...]
CLASSES = 5
VOCABULARY = 40
# Compiling holds a few kilobytes itself, so a step has some hundred.
BATCHES = {"image": (7, 16), "tokens": (7, 16), "sequence": (7, 16), "vector": (100, 256)}
RETURNS = ("loss", "loss and features", "dictionary", "features")


@dataclass(frozen=True)
class Spec:
    """One layer: its name in a table, the shape it works on, and what is inside it."""

    name: str
    shape: Shape
    inside: tuple[Spec, ...] = ()

    def __repr__(self) -> str:
        inside = ", ".join(map(repr, self.inside))
        return f"{self.name}({inside})" if inside else self.name


@dataclass(frozen=True)
class Recipe:
    """A model, its data and how it is trained.

    Attributes:
        returns: What the model hands back: its loss, more beside it, or features alone.
        is_function: Whether a function that computes the loss is fitted, instead of the model.
    """

    source: str
    batch: int
    shape: Shape
    layers: tuple[Spec, ...]
    returns: str
    is_function: bool
    optimizer: str
    is_partly_frozen: bool
    seed: int


# Layers that keep the shape -----------------------------------------------------------------------


class Lambda(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, value):
        return self._function(value)


class After(nn.Module):
    """A function of a layer's output, which the layer does not save: it may be written into."""

    def __init__(self, layer: nn.Module, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.layer = layer
        self._function = function

    def forward(self, value):
        return self._function(self.layer(value))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, max(1, channels // 2), 1)
        self.second = nn.Conv2d(max(1, channels // 2), channels, 1)

    def forward(self, value):
        pooled = F.adaptive_avg_pool2d(value, 1)
        return value * torch.sigmoid(self.second(F.relu(self.first(pooled))))


class Gate(nn.Module):
    """Halves as views, one gating the other, joined again."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self._axis = axis

    def forward(self, value):
        first, second = value.chunk(2, dim=self._axis)
        return torch.cat([first * torch.sigmoid(second), second], dim=self._axis)


class Average(nn.Module):
    """A buffer that forward updates and reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.ones(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, value):
        if self.training:
            self.average.mul_(0.9).add_(0.1 * value.detach().abs().mean())
            self.seen += 1
        return value / (1 + self.average)


class Mask(nn.Module):
    """A buffer that forward only reads."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.register_buffer("mask", torch.rand(shape) > 0.2, persistent=False)

    def forward(self, value):
        return value.masked_fill(self.mask, 0.5)


class Attention(nn.Module):
    def __init__(self, width: int, *, dropout: float = 0.0, is_causal: bool = False) -> None:
        super().__init__()
        self.inputs = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width)
        self._dropout = dropout
        self._is_causal = is_causal

    def forward(self, value):
        batch, length, width = value.shape
        parts = self.inputs(value).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            *parts.unbind(0), dropout_p=self._dropout, is_causal=self._is_causal
        )
        return self.output(mixed.transpose(1, 2).reshape(batch, length, width))


class SpelledOutAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.keys = nn.Linear(width, width)

    def forward(self, value):
        keys = self.keys(value)
        scores = torch.einsum("bid,bjd->bij", value, keys) / value.shape[-1] ** 0.5
        return F.dropout(scores.softmax(-1), 0.1, self.training) @ keys


class Heads(nn.Module):
    """PyTorch's own multi-head attention."""

    def __init__(self, width: int, *, tells_weights: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self._tells_weights = tells_weights

    def forward(self, value):
        mixed, weights = self.inner(value, value, value, need_weights=self._tells_weights)
        return mixed if weights is None else mixed + weights.mean()


class Positions(nn.Module):
    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.places = nn.Embedding(length, width)

    def forward(self, value):
        return value + self.places(torch.arange(value.shape[1], device=value.device))


class AlongLength(nn.Module):
    """A convolution over a sequence: transposed there and back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Conv1d(width, width, 3, padding=1)

    def forward(self, value):
        return self.inner(value.transpose(1, 2)).transpose(1, 2)


def _add_in_place(value):
    value += 0.5
    return value.mul_(0.9)


def _shuffle_channels(value):
    batch, channels, height, width = value.shape
    swapped = value.view(batch, 2, channels // 2, height, width).transpose(1, 2)
    return swapped.reshape(batch, channels, height, width)


def _pad_and_cut(value):
    return F.pad(value, (1, 1, 1, 1), mode="reflect")[..., 1:-1, :-2]


def _every_second(value):
    halves = value[..., ::2]
    return torch.repeat_interleave(halves, 2, dim=-1)


Make = Callable[..., nn.Module]

ANYWHERE: dict[str, Make] = {
    "relu": lambda *s: nn.ReLU(),
    "gelu": lambda *s: nn.GELU(),
    "tanh": lambda *s: nn.Tanh(),
    "silu": lambda *s: nn.SiLU(),
    "sigmoid": lambda *s: nn.Sigmoid(),
    "elu": lambda *s: nn.ELU(),
    "softplus": lambda *s: nn.Softplus(),
    "dropout": lambda *s: nn.Dropout(0.2),
    "spelled_out_gelu": lambda *s: Lambda(
        lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.04 * x.pow(3))))
    ),
    "in_place_relu": lambda *s: After(Lambda(lambda x: x + 0.1), nn.ReLU(inplace=True)),
    "in_place_leaky_relu": lambda *s: After(
        Lambda(lambda x: x - 0.1), nn.LeakyReLU(0.1, inplace=True)
    ),
    "in_place_hardswish": lambda *s: After(Lambda(lambda x: 2 * x), nn.Hardswish(inplace=True)),
    "in_place_arithmetic": lambda *s: After(Lambda(lambda x: x - 0.2), _add_in_place),
    "in_place_dropout": lambda *s: After(Lambda(lambda x: x + 0.2), nn.Dropout(0.1, inplace=True)),
    "average": lambda *s: Average(),
    "mask": lambda *s: Mask(s),
    "where": lambda *s: Lambda(lambda x: torch.where(x > 0, x, 0.1 * x)),
    "clamp": lambda *s: Lambda(lambda x: x.clamp(-2, 2)),
    "noise": lambda *s: Lambda(lambda x: x + 0.1 * torch.randn_like(x)),
    "every_second": lambda *s: Lambda(_every_second),
    "flip": lambda *s: Lambda(lambda x: x.flip(-1)),
    "roll": lambda *s: Lambda(lambda x: x.roll(1, dims=-1)),
}

ON_IMAGES: dict[str, Make] = {
    "convolution": lambda c, h, w: nn.Conv2d(c, c, 3, padding=1),
    "pointwise_convolution": lambda c, h, w: nn.Conv2d(c, c, 1, bias=False),
    "depthwise_convolution": lambda c, h, w: nn.Conv2d(c, c, 3, padding=1, groups=c),
    "widened_convolution": lambda c, h, w: nn.Sequential(
        nn.Conv2d(c, 2 * c, 3, padding=1), nn.ReLU(), nn.Conv2d(2 * c, c, 1)
    ),
    "batch_norm": lambda c, h, w: nn.BatchNorm2d(c),
    "batch_norm_relu": lambda c, h, w: After(
        nn.Sequential(nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)),
        nn.ReLU(inplace=True),
    ),
    "batch_norm_without_statistics": lambda c, h, w: nn.BatchNorm2d(c, track_running_stats=False),
    "group_norm": lambda c, h, w: nn.GroupNorm(2, c),
    "instance_norm": lambda c, h, w: nn.InstanceNorm2d(c, affine=True),
    "max_pooling": lambda c, h, w: nn.MaxPool2d(3, stride=1, padding=1),
    "average_pooling": lambda c, h, w: nn.AvgPool2d(3, stride=1, padding=1),
    "adaptive_pooling": lambda c, h, w: Lambda(
        lambda x: F.interpolate(F.adaptive_avg_pool2d(x, 4), size=(h, w))
    ),
    "adaptive_max_pooling": lambda c, h, w: Lambda(
        lambda x: x + F.adaptive_max_pool2d(x, 1).expand_as(x)
    ),
    "down_and_up": lambda c, h, w: nn.Sequential(
        nn.MaxPool2d(2), nn.ConvTranspose2d(c, c, 2, stride=2)
    ),
    "squeeze_excite": lambda c, h, w: SqueezeExcite(c),
    "dropout2d": lambda c, h, w: nn.Dropout2d(0.2),
    "shuffle_channels": lambda c, h, w: Lambda(_shuffle_channels),
    "gate": lambda c, h, w: Gate(1),
    "padding": lambda c, h, w: Lambda(_pad_and_cut),
}

ON_SEQUENCES: dict[str, Make] = {
    "linear": lambda n, d: nn.Linear(d, d),
    "feed_forward": lambda n, d: nn.Sequential(
        nn.Linear(d, 3 * d), nn.GELU(), nn.Dropout(0.1), nn.Linear(3 * d, d)
    ),
    "layer_norm": lambda n, d: nn.LayerNorm(d),
    "rms_norm": lambda n, d: nn.RMSNorm(d),
    "pre_norm_attention": lambda n, d: nn.Sequential(nn.LayerNorm(d), Attention(d)),
    "attention": lambda n, d: Attention(d),
    "causal_attention": lambda n, d: Attention(d, is_causal=True),
    "attention_with_dropout": lambda n, d: Attention(d, dropout=0.1),
    "spelled_out_attention": lambda n, d: SpelledOutAttention(d),
    "heads": lambda n, d: Heads(d, tells_weights=False),
    "heads_with_weights": lambda n, d: Heads(d, tells_weights=True),
    "encoder_layer": lambda n, d: nn.TransformerEncoderLayer(d, 2, 2 * d, batch_first=True),
    "positions": Positions,
    "along_length": lambda n, d: AlongLength(d),
    "gate": lambda n, d: Gate(2),
    "softmax": lambda n, d: Lambda(lambda x: x * x.softmax(dim=1)),
    "reshape": lambda n, d: Lambda(lambda x: x.reshape(len(x), d, n).relu().reshape(len(x), n, d)),
    "cumulative": lambda n, d: Lambda(lambda x: x.cumsum(1) / n),
}

ON_VECTORS: dict[str, Make] = {
    "linear": lambda d: nn.Linear(d, d),
    "wide": lambda d: nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d)),
    "batch_norm": nn.BatchNorm1d,
    "batch_norm_relu": lambda d: After(
        nn.Sequential(nn.Linear(d, d), nn.BatchNorm1d(d)), nn.ReLU(inplace=True)
    ),
    "layer_norm": nn.LayerNorm,
    "rms_norm": nn.RMSNorm,
    "gate": lambda d: Gate(1),
    "normalise": lambda d: Lambda(lambda x: F.normalize(x, dim=1)),
    "outer": lambda d: Lambda(lambda x: (x[:, :, None] * x[:, None, :]).mean(1) + x),
}

TABLES = {
    3: ANYWHERE | ON_IMAGES,
    2: ANYWHERE | ON_SEQUENCES,
    1: ANYWHERE | ON_VECTORS,
}


# What is made of other layers ---------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, inside: nn.Module, *, in_place: bool) -> None:
        super().__init__()
        self.inside = inside
        self._in_place = in_place

    def forward(self, value):
        result = self.inside(value)
        if not self._in_place:
            return value + result
        result = 0.5 * result
        result += value
        return result


class Branches(nn.Module):
    def __init__(self, inside: list[nn.Module], join: str, shape: Shape) -> None:
        super().__init__()
        self.inside = nn.ModuleList(inside)
        self._join = join
        width, wide = shape[0 if len(shape) == 3 else -1], len(inside)
        if join == "concatenate":
            is_image = len(shape) == 3
            self.mix = nn.Conv2d(width * wide, width, 1) if is_image else None
            self.mix = self.mix or nn.Linear(width * wide, width)
            self._axis = 1 if is_image else -1

    def forward(self, value):
        results = [each(value) for each in self.inside]
        if self._join == "concatenate":
            return self.mix(torch.cat(results, dim=self._axis))
        if self._join == "stack":
            return torch.stack(results).mean(0)
        first, *others = results
        for other in others:
            first = first + other if self._join == "add" else first * torch.tanh(other)
        return first


class Twice(nn.Module):
    """The same weights used twice."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, value):
        return self.inside(self.inside(value))


COMBINED: dict[str, Callable[[list[nn.Module], Shape], nn.Module]] = {
    "residual": lambda inside, shape: Residual(nn.Sequential(*inside), in_place=False),
    "residual_in_place": lambda inside, shape: Residual(nn.Sequential(*inside), in_place=True),
    "branches_added": lambda inside, shape: Branches(inside, "add", shape),
    "branches_multiplied": lambda inside, shape: Branches(inside, "multiply", shape),
    "branches_concatenated": lambda inside, shape: Branches(inside, "concatenate", shape),
    "branches_stacked": lambda inside, shape: Branches(inside, "stack", shape),
    "twice": lambda inside, shape: Twice(nn.Sequential(*inside)),
}


# Layers that change the shape ---------------------------------------------------------------------

DOWN: dict[str, Make] = {
    "strided_convolution": lambda c, h, w: nn.Conv2d(c, 2 * c, 3, stride=2, padding=1),
    "max_pooling_by_two": lambda c, h, w: nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(c, 2 * c, 1)),
    "average_pooling_by_two": lambda c, h, w: nn.Sequential(
        nn.AvgPool2d(2), nn.Conv2d(c, 2 * c, 1)
    ),
}
TO_SEQUENCE: dict[str, Make] = {
    "as_sequence": lambda c, h, w: Lambda(lambda x: x.flatten(2).transpose(1, 2)),
}
TO_VECTOR: dict[str, Make] = {
    "pooled_image": lambda c, h, w: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    "max_pooled_image": lambda c, h, w: nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten()),
    "mean_of_sequence": lambda n, d: Lambda(lambda x: x.mean(1)),
    "first_of_sequence": lambda n, d: Lambda(lambda x: x[:, 0]),
    "highest_of_sequence": lambda n, d: Lambda(lambda x: x.max(1).values),
}
CHANGING = DOWN | TO_SEQUENCE | TO_VECTOR


def layer(spec: Spec) -> nn.Module:
    """What a spec says."""
    if spec.name in COMBINED:
        return COMBINED[spec.name]([layer(each) for each in spec.inside], spec.shape)
    make = CHANGING.get(spec.name) or TABLES[len(spec.shape)][spec.name]
    return make(*spec.shape)


# Drawing ------------------------------------------------------------------------------------------


@st.composite
def _kept(draw: Any, shape: Shape, depth: int) -> Spec:
    """A layer that keeps the shape."""
    if depth and draw(st.integers(0, 2)) == 0:
        name = draw(st.sampled_from(sorted(COMBINED)))
        inside = draw(st.lists(_kept(shape, depth - 1), min_size=2, max_size=3))
        return Spec(name, shape, tuple(inside))
    return Spec(draw(st.sampled_from(sorted(TABLES[len(shape)]))), shape)


@st.composite
def recipes(draw: Any) -> Recipe:
    """Images become sequences or vectors, sequences become vectors, and vectors classes."""
    source = draw(st.sampled_from(["image", "tokens", "sequence", "vector"]))
    if source == "image":
        shape: Shape = (draw(st.sampled_from([8, 12])), *[draw(st.sampled_from([12, 16]))] * 2)
    elif source == "vector":
        shape = (draw(st.sampled_from([64, 128])),)
    else:
        shape = (draw(st.sampled_from([16, 24])), draw(st.sampled_from([32, 64])))
    first, layers = shape, []
    while True:
        layers += draw(st.lists(_kept(shape, 2), min_size=1, max_size=4))
        if len(shape) == 1:
            break
        name, shape_after = draw(st.sampled_from(_changes(shape)))
        layers.append(Spec(name, shape))
        shape = shape_after
    return Recipe(
        source=source,
        batch=draw(st.sampled_from(BATCHES[source])),
        shape=first,
        layers=tuple(layers),
        returns=draw(st.sampled_from(RETURNS)),
        is_function=draw(st.booleans()),
        optimizer=draw(st.sampled_from(["sgd", "adamw", "foreach"])),
        is_partly_frozen=draw(st.integers(0, 4)) == 0,
        seed=draw(st.integers(0, 1000)),
    )


def _changes(shape: Shape) -> list[tuple[str, Shape]]:
    if len(shape) == 2:
        names = ("mean_of_sequence", "first_of_sequence", "highest_of_sequence")
        return [(name, (shape[1],)) for name in names]
    channels, height, width = shape
    found: list[tuple[str, Shape]] = [
        ("pooled_image", (channels,)),
        ("max_pooled_image", (channels,)),
        ("as_sequence", (height * width, channels)),
    ]
    if channels < 12 and height > 8:
        found += [(name, (2 * channels, height // 2, width // 2)) for name in DOWN]
    return found


# Building -----------------------------------------------------------------------------------------


class RandomModel(nn.Module):
    """What a recipe says, with a classifier on top."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        is_text = recipe.source == "tokens"
        self.words = nn.Embedding(VOCABULARY, recipe.shape[-1]) if is_text else None
        self.layers = nn.ModuleList([layer(spec) for spec in recipe.layers])
        self.head = nn.Linear(recipe.layers[-1].shape[-1], CLASSES)
        if is_text:
            self.tied = nn.Linear(recipe.shape[-1], VOCABULARY, bias=False)
            self.tied.weight = self.words.weight

    def forward(self, data, labels):
        value = data if self.words is None else self.words(data)
        for each in self.layers:
            value = each(value)
        logits = self.head(value)
        if self.recipe.returns == "features":
            return logits
        loss = F.cross_entropy(logits, labels)
        if self.words is not None and value.shape[-1] == self.words.weight.shape[1]:
            loss = loss + 0.1 * self.tied(value).logsumexp(-1).mean()
        if self.recipe.returns == "loss and features":
            return loss, value
        if self.recipe.returns == "dictionary":
            return {"logits": logits, "loss": loss}
        return loss


@dataclass
class Training:
    """A model with its data; `compute` is what a training loop calls and `loss` what it does."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    data: torch.Tensor
    labels: torch.Tensor

    def compute_loss(self, data: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """What is fitted where a function is."""
        return self.loss_of(self.model(data, labels))

    def loss_of(self, output: Any) -> torch.Tensor:
        """The loss, wherever the model has left it."""
        if isinstance(output, dict):
            return output["loss"]
        if isinstance(output, tuple):
            return output[0]
        return output if output.ndim == 0 else F.cross_entropy(output, self.labels)


def build(recipe: Recipe) -> Training:
    """The same training each time, and the same random numbers to come."""
    torch.manual_seed(recipe.seed)
    model = RandomModel(recipe).train()
    params = [*model.parameters()]
    if recipe.is_partly_frozen:
        params[0].requires_grad_(False)
    if recipe.source == "tokens":
        data = torch.randint(VOCABULARY, (recipe.batch, recipe.shape[0]))
    else:
        data = torch.randn(recipe.batch, *recipe.shape)
    optimizers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(params, lr=0.05, momentum=0.9),
        "adamw": lambda: torch.optim.AdamW(params, lr=1e-3, foreach=False),
        "foreach": lambda: torch.optim.AdamW(params, lr=1e-3, foreach=True),
    }
    return Training(
        model,
        optimizers[recipe.optimizer](),
        data,
        torch.randint(CLASSES, (recipe.batch,)),
    )
