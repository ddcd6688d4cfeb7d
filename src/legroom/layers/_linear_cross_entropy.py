"""A model's last layer and its loss as one operation that never holds all logits.

In go the features that the last layer reads, its weight and the targets; out comes the cross
entropy. Logits are computed a tile at a time and dropped, in forward and again in backward. See
Note [Tiles].
"""

# Note [Tiles]
# 1. Plain, a language model holds its logits about three times: as they are, as logarithms of
#    probabilities, as gradients; often as float32 where the model is bfloat16. Here each row's
#    logarithm of the sum of exponentials is held, and one tile of logits at a time.
# 2. Backward computes the logits once more: a third more time for the last layer.
# 3. Logits become float32 before anything is done with them, and the weight's gradient is summed
#    up in float32 over the rows; float64 stays float64.
# 4. Two operations that PyTorch knows, so that torch.compile and plans see one thing each.
# 5. A gradient is added up over the tiles: the features' over those side by side, the weight's over
#    those above one another. So a tile has all rows and some classes, or all classes and some rows:
#    the larger of the two gradients is then written once.

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from legroom.capture import LIBRARY
from legroom.errors import UsageError

_TILE_BYTES = 4 * 2**20
"""Of logits. A matrix product with a hundred rows runs as fast as one with thousands."""
_FEWEST = 128
_REDUCTIONS = ("none", "mean", "sum")


@final
@dataclass(frozen=True, slots=True)
class _Settings:
    """What a cross entropy is told, as an operation can be told it."""

    ignore_index: int
    label_smoothing: float
    z_loss: float


def linear_cross_entropy(  # noqa: PLR0913 - the arguments of PyTorch's cross_entropy
    features: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    class_weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> torch.Tensor:
    """`F.cross_entropy(F.linear(features, weight, bias), target)` without holding the logits.

    Args:
        features: What the last layer reads, `(..., width)`.
        weight: The last layer's weight, `(classes, width)`; it may be tied to an embedding.
        target: The right class of each row, `(...)`; whole numbers.
        class_weight: How much each class counts, `(classes,)`.
        z_loss: Added for each row: so many times the square of its log-sum-exp.

    Raises:
        UsageError: Shapes or types do not fit together.

    Cost: the last layer's forward once more. Saves: all logits and their copies but some rows.
    """
    _check(features, weight, target, reduction)
    narrow = torch.get_autocast_dtype(features.device.type)
    if torch.is_autocast_enabled(features.device.type) and features.dtype is not torch.float64:
        features, weight = features.to(narrow), weight.to(narrow)
        bias = None if bias is None else bias.to(narrow)
    rows = features.reshape(-1, features.shape[-1])
    answers = target.reshape(-1)
    losses, _ = torch.ops.legroom.linear_cross_entropy(
        rows, weight, bias, answers, class_weight, ignore_index, label_smoothing, z_loss
    )
    if reduction == "none":
        return torch.as_tensor(losses.view(target.shape))
    total: torch.Tensor = losses.sum()
    if reduction == "sum":
        return total
    counted = answers != ignore_index
    if class_weight is None:
        return total / counted.sum()
    counts = class_weight[answers.where(counted, 0)].where(counted, 0.0)
    return total / counts.sum().to(total.dtype)


@final
class LinearCrossEntropy(nn.Module):
    """`linear_cross_entropy` as a module: the last layer's weight is handed in with each call.

    Takes what `torch.nn.CrossEntropyLoss` takes, and `z_loss`.
    """

    class_weight: torch.Tensor | None

    def __init__(
        self,
        class_weight: torch.Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
    ) -> None:
        super().__init__()
        self.register_buffer("class_weight", class_weight)
        self.options: dict[str, Any] = {
            "ignore_index": ignore_index,
            "reduction": reduction,
            "label_smoothing": label_smoothing,
            "z_loss": z_loss,
        }

    def forward(
        self,
        features: torch.Tensor,
        weight: torch.Tensor,
        target: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The loss of features under a last layer with this weight and bias."""
        return linear_cross_entropy(
            features, weight, target, bias=bias, class_weight=self.class_weight, **self.options
        )

    def extra_repr(self) -> str:
        """The options, as they were given."""
        return ", ".join(f"{key}={value!r}" for key, value in self.options.items())


def _check(
    features: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, reduction: str
) -> None:
    if reduction not in _REDUCTIONS:
        raise UsageError(f"reduction {reduction!r} is not one of {', '.join(_REDUCTIONS)}")
    if weight.dim() != 2 or features.dim() < 1 or features.shape[-1] != weight.shape[1]:
        raise UsageError(
            f"features of shape {tuple(features.shape)} do not fit a weight of shape "
            f"{tuple(weight.shape)}; expected (..., width) and (classes, width)"
        )
    if target.is_floating_point():
        raise UsageError(
            "targets that are probabilities are as large as the logits themselves; expected one "
            "whole number for each row"
        )
    if target.shape != features.shape[:-1]:
        raise UsageError(
            f"target of shape {tuple(target.shape)} does not fit features of shape "
            f"{tuple(features.shape)}; expected {tuple(features.shape[:-1])}"
        )


# The two operations ------------------------------------------------------------------------------


def _tiles(num_rows: int, num_classes: int) -> Iterator[tuple[slice, slice]]:
    """Rows and classes of one tile after the other; see Note [Tiles], rule 5."""
    across = num_rows <= num_classes
    whole, divided = (num_rows, num_classes) if across else (num_classes, num_rows)
    count = max(_FEWEST, _TILE_BYTES // max(1, 4 * whole))
    for start in range(0, divided, count):
        part, everything = slice(start, min(start + count, divided)), slice(0, whole)
        yield (everything, part) if across else (part, everything)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """See Note [Tiles], rule 3."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def _logits(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return nn.functional.linear(rows, weight, bias).to(_wide(rows.dtype))


def _part(bias: torch.Tensor | None, classes: slice) -> torch.Tensor | None:
    return None if bias is None else bias[classes]


def _within(answers: torch.Tensor, classes: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows have their answer in a tile, and its place there; 0 for the others."""
    is_inside = (answers >= classes.start) & (answers < classes.stop)
    return is_inside, (answers - classes.start).where(is_inside, 0)[:, None]


def _forward(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    *settings: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    told = _Settings(*settings)
    losses, spread = _empty_forward(rows)
    spread.fill_(-math.inf)
    chosen, weighted = torch.zeros_like(losses), torch.zeros_like(losses)
    weights = _class_weights(weight, class_weight, losses.dtype)
    counted = target != told.ignore_index
    answers = target.where(counted, 0)
    for part, classes in _tiles(len(rows), len(weight)):
        logits = _logits(rows[part], weight[classes], _part(bias, classes))
        is_inside, places = _within(answers[part], classes)
        chosen[part] += logits.gather(1, places)[:, 0].where(is_inside, 0.0)
        if told.label_smoothing:
            weighted[part] += logits @ weights[classes]
        spread[part] = torch.logaddexp(spread[part], logits.logsumexp(1))
    share = _share_of(answers, class_weight, told).to(losses.dtype)
    torch.mul(share, spread - chosen, out=losses).add_(told.z_loss * spread.square())
    if told.label_smoothing:
        each = told.label_smoothing / len(weight)
        losses += each * (weights.sum() * spread - weighted)
    return losses.where(counted, 0.0), spread


def _backward(
    wants_weight: bool,
    gradient: torch.Tensor,
    spread: torch.Tensor,
    rows: torch.Tensor,
    weight: torch.Tensor,
    *rest: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    bias, target, class_weight, *settings = rest
    told = _Settings(*settings)
    wide = _wide(rows.dtype)
    to_rows = torch.zeros_like(rows, dtype=wide)
    to_weight = weight.new_zeros(weight.shape if wants_weight else 0, dtype=wide)
    to_bias = torch.zeros(len(weight) if bias is not None else 0, dtype=wide, device=weight.device)
    weights = _class_weights(weight, class_weight, wide)
    each = told.label_smoothing / len(weight)
    counted = target != told.ignore_index
    answers = target.where(counted, 0)
    given = gradient.where(counted, 0.0)
    share = _share_of(answers, class_weight, told).to(wide)
    slope = (share + each * weights.sum() + 2 * told.z_loss * spread) * given
    share = share * given
    for part, classes in _tiles(len(rows), len(weight)):
        is_inside, places = _within(answers[part], classes)
        slopes = _logits(rows[part], weight[classes], _part(bias, classes))
        slopes.sub_(spread[part, None]).exp_().mul_(slope[part, None])
        slopes.scatter_add_(1, places, -share[part].where(is_inside, 0.0)[:, None])
        if told.label_smoothing:
            slopes.addr_(given[part], weights[classes], alpha=-each)
        if bias is not None:
            to_bias[classes] += slopes.sum(0)
        narrow = slopes.to(rows.dtype)
        _add_product(to_rows[part], narrow, weight[classes])
        if wants_weight:
            _add_product(to_weight[classes], narrow.t(), rows[part])
    narrow_bias = to_bias if bias is None else to_bias.to(bias.dtype)
    return to_rows.to(rows.dtype), to_weight.to(weight.dtype), narrow_bias


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    if total.dtype is left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _share_of(
    answers: torch.Tensor, class_weight: torch.Tensor | None, told: _Settings
) -> torch.Tensor:
    """How much the right answer of each row counts."""
    if class_weight is None:
        return torch.full_like(answers, 1.0 - told.label_smoothing, dtype=torch.float64)
    return (1.0 - told.label_smoothing) * class_weight[answers]


def _class_weights(
    weight: torch.Tensor, class_weight: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    if class_weight is None:
        return torch.ones(len(weight), dtype=dtype, device=weight.device)
    return class_weight.to(dtype)


def _empty_forward(rows: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    made = rows.new_empty(len(rows), dtype=_wide(rows.dtype))
    return made, torch.empty_like(made)


def _empty_backward(
    wants_weight: bool,
    gradient: torch.Tensor,
    spread: torch.Tensor,
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *rest: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    to_bias = (
        weight.new_empty(0, dtype=_wide(rows.dtype)) if bias is None else bias.new_empty(bias.shape)
    )
    return torch.empty_like(rows), weight.new_empty(weight.shape if wants_weight else 0), to_bias


_OPERANDS = (
    "Tensor rows, Tensor weight, Tensor? bias, Tensor target, Tensor? class_weight, "
    "int ignore_index, float label_smoothing, float z_loss"
)
LIBRARY.define(f"linear_cross_entropy({_OPERANDS}) -> (Tensor, Tensor)")
LIBRARY.impl("linear_cross_entropy", _forward, "CompositeExplicitAutograd")
LIBRARY.impl("linear_cross_entropy", _empty_forward, "Meta")
LIBRARY.define(
    f"linear_cross_entropy_backward(bool wants_weight, Tensor gradient, Tensor spread, "
    f"{_OPERANDS}) -> (Tensor, Tensor, Tensor)"
)
LIBRARY.impl("linear_cross_entropy_backward", _backward, "CompositeExplicitAutograd")
LIBRARY.impl("linear_cross_entropy_backward", _empty_backward, "Meta")


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    rows, weight, bias, target, class_weight, *settings = inputs
    ctx.save_for_backward(output[1], rows, weight, bias, target, class_weight)
    ctx.settings = settings
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[Any, ...]:
    made = torch.ops.legroom.linear_cross_entropy_backward(
        ctx.needs_input_grad[1], gradient, *ctx.saved_tensors, *ctx.settings
    )
    wanted = [
        each if needed else None
        for each, needed in zip(made, ctx.needs_input_grad[:3], strict=True)
    ]
    return (*wanted, *(None,) * 5)


torch.library.register_autograd(
    "legroom::linear_cross_entropy", _differentiate, setup_context=_keep, lib=LIBRARY
)
