"""Finds attention whose probabilities are kept in full."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from legroom.meter._profile import Finding, Profile, TensorUse
from legroom.meter.findings._base import AbstractFinder, counted, keeps_by, num_elements, stash_of

_FUSED = "scaled_dot_product_attention"
_SOFTMAX = frozenset({"softmax", "safe_softmax"})
_PRODUCTS = frozenset({"bmm", "mul", "baddbmm"})


@final
class AttentionMath(AbstractFinder):
    """Every query's probabilities over all keys, kept per head; fused attention keeps row sums."""

    name = "attention-math"
    title = "attention probabilities kept in full"
    remedy = (
        'use F.scaled_dot_product_attention (attn_implementation="sdpa", need_weights=False) '
        "and keep it on its fused path: on CPU that means dropout_p=0.0, and anywhere no mask "
        "that requires a gradient; is_causal=True instead of a causal mask"
    )

    def find(self, profile: Profile) -> Iterable[Finding]:
        """What the probabilities' operations keep in the probabilities' size."""
        stash = stash_of(profile)
        probabilities = [t for t in stash if _is_attention(t, stash)]
        places = {(t.operation == _FUSED, t.module, num_elements(t)) for t in probabilities}
        whole = [
            t
            for t in stash
            if (t.operation == _FUSED, t.module, num_elements(t)) in places
            and (t in probabilities or keeps_by(t, _PRODUCTS))
        ]
        return self.report(
            profile,
            whole,
            f"{counted(len(probabilities), 'softmax|softmaxes')} of {{shape}} and what follows: "
            f"{{count:tensor}}, {{bytes}}; {_reason(probabilities, whole)}",
        )


def _is_attention(tensor: TensorUse, stash: list[TensorUse]) -> bool:
    """Whether it is a softmax over keys that a batched product with the values follows."""
    softmaxes = keeps_by(tensor, _SOFTMAX, {"result"})
    if not softmaxes or len(tensor.shape) < 3 or min(tensor.shape[-2:]) < 2:
        return False
    if tensor.operation == _FUSED:
        return True
    modules = {keep.module for keep in softmaxes}
    return any(
        keep.module in modules
        for other in stash
        if num_elements(other) == num_elements(tensor)
        for keep in keeps_by(other, {"bmm"})
    )


def _reason(probabilities: list[TensorUse], whole: list[TensorUse]) -> str:
    if not any(t.operation == _FUSED for t in probabilities):
        return "attention is written out as matmul, softmax, matmul"
    if any(t.kernel in {"dropout", "native_dropout"} for t in whole):
        return "scaled_dot_product_attention took its slow path because of dropout"
    return (
        "scaled_dot_product_attention took its slow path: a mask with a gradient, or a shape or "
        "type that the fused kernels do not take"
    )
