"""Finds logits and their copies around a cross-entropy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import final

from legroom.meter._profile import Finding, Profile, TensorUse
from legroom.meter.findings._base import (
    AbstractFinder,
    keeps_by,
    most_at_once,
    num_elements,
    shape_text,
)

_CLOSE = 1.5
"""Scores shifted by one position are a little smaller than those that the model returned."""


@final
class Logits(AbstractFinder):
    """The scores over all classes, their log-softmax and their gradients, all alive at once."""

    name = "logits"
    title = "logits and their copies in the loss"
    remedy = (
        "compute projection and loss in chunks (F.linear_cross_entropy with "
        "options=nn.LinearCrossEntropyOptions()), or only for the positions that have a label; do "
        "not call .float() on the scores or return them beside the loss"
    )

    def find(self, profile: Profile) -> Iterable[Finding]:
        """Activations shaped like the log-softmax of a loss, at the moment of most such bytes."""
        log_softmaxes = [t for t in profile.tensors if keeps_by(t, {"log_softmax"}, {"result"})]
        if not log_softmaxes:
            return ()
        largest = max(log_softmaxes, key=lambda t: t.bytes)
        alive = most_at_once(t for t in profile.tensors if _is_copy(t, largest))
        roles = Counter(_role(t, largest) for t in alive)
        parts = ", ".join(f"{count} × {role}" for role, count in roles.items())
        shape = shape_text(largest.shape)
        return self.report(profile, alive, f"{{count:tensor}} of {shape} alive at once: {parts}")


def _is_copy(tensor: TensorUse, scores: TensorUse) -> bool:
    if tensor.kind != "stash" and not tensor.kind.startswith("temporaries"):
        return False
    if tensor.shape == scores.shape:
        return True
    if len(scores.shape) != 2:
        # With spatial dimensions, which the loss flattens, the classes are not last.
        same_size = num_elements(tensor) == num_elements(scores)
        return same_size and tensor.operation == scores.operation
    if tensor.shape[-1:] != scores.shape[-1:]:
        return False
    ratio = num_elements(tensor) / max(1, math.prod(scores.shape))
    return 1 / _CLOSE <= ratio <= _CLOSE


def _role(tensor: TensorUse, scores: TensorUse) -> str:
    if tensor.kind == "temporaries_backward":
        return "gradient"
    if keeps_by(tensor, {"log_softmax"}, {"result"}):
        return "log-softmax"
    if tensor.kernel == "_to_copy" and tensor.dtype == scores.dtype:
        return f"{tensor.dtype} copy of the scores"
    return f"scores in {tensor.dtype}"
