"""Finds activation functions that are written out in Python, operation by operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import final

from legroom.meter._profile import Finding, Keep, Profile, TensorUse
from legroom.meter.findings._base import AbstractFinder, counted, lives_at, num_elements, stash_of

_CURVES = frozenset({"tanh", "sigmoid", "erf", "exp"})
_ELEMENTWISE = _CURVES | {"mul", "div", "pow", "add", "sub", "softplus", "log1p", "square", "neg"}


@final
class SpelledOutActivation(AbstractFinder):
    """Each operation of the formula keeps its own operands; a fused one keeps its input only."""

    name = "spelled-out-activation"
    title = "an activation function spelled out, every intermediate result kept"
    remedy = (
        'call the fused function: F.gelu(x, approximate="tanh") for gelu_new '
        '(activation_function="gelu_pytorch_tanh" in transformers), F.silu for x * sigmoid(x), '
        "F.mish; quick-gelu is F.silu(1.702 * x) / 1.702, which still keeps one tensor less"
    )

    def find(self, profile: Profile) -> Iterable[Finding]:
        """Groups of equal size kept by one formula of one curve; all but one tensor is waste."""
        groups = [g for g in _formulas(profile) if len(g) >= 2 and not _has_gate(profile, g)]
        spared = {max(group, key=lambda t: t.bytes).id for group in groups}
        extra = [t for group in groups for t in group if t.id not in spared]
        calls = len(groups)
        per_call = max((len(group) for group in groups), default=0)
        return self.report(
            profile,
            extra,
            f"{counted(calls, 'call')}, each keeping up to {per_call} tensors of {{shape}} where a "
            "fused function keeps one: {count:tensor} too many",
        )


def _formulas(profile: Profile) -> Iterable[list[TensorUse]]:
    """For each call of a formula, the tensors that its operations keep.

    A formula is a function of one module with exactly one curve in it. A cell with several gates
    has more: no fused function would replace it.
    """
    function_of = {(use.file, use.line): use.function for use in profile.lines}
    loss_spans = [(p.start_ms, p.end_ms) for p in profile.phases if p.phase == "loss"]
    kept: dict[tuple[str, str, str, int], dict[int, TensorUse]] = defaultdict(dict)
    curves: dict[tuple[str, str, str, int], set[tuple[str, int]]] = defaultdict(set)
    for tensor in stash_of(profile):
        if any(start <= tensor.born_ms <= end for start, end in loss_spans):
            continue
        for keep in tensor.kept_by:
            if keep.operation in _ELEMENTWISE and keep.line:
                function = function_of.get((keep.file, keep.line), "")
                place = (keep.file, function, keep.module, num_elements(tensor))
                kept[place][tensor.id] = tensor
                if _is_curve(keep):
                    curves[place].add((keep.operation, keep.line))
    for place, tensors in kept.items():
        if len(curves[place]) == 1:
            yield from _calls(list(tensors.values()))


def _calls(tensors: list[TensorUse]) -> list[list[TensorUse]]:
    """Split by call: each has the curve once, and its operands lie evenly between the calls."""
    num_calls = sum(any(_is_curve(keep) for keep in t.kept_by) for t in tensors)
    if num_calls < 1 or len(tensors) % num_calls:
        return []
    size = len(tensors) // num_calls
    return [tensors[i : i + size] for i in range(0, len(tensors), size)]


def _is_curve(keep: Keep) -> bool:
    return keep.operation in _CURVES


def _has_gate(profile: Profile, group: list[TensorUse]) -> bool:
    """Whether the curve's input came from elsewhere, as the gate of `value * sigmoid(gate)` does.

    Such a gate is not kept, yet alive when the curve is computed, and no formula made it.
    """
    if any(keep.operation == "erf" for t in group for keep in t.kept_by):
        return False  # nobody gates with the error function; it is GELU, which keeps x / √2
    curve = next(t for t in group if any(_is_curve(keep) for keep in t.kept_by))
    return any(
        t.kind == "temporaries_forward"
        and t.kernel not in _ELEMENTWISE | {"clone", "_to_copy", "copy_"}
        and num_elements(t) == num_elements(curve)
        and t.born_ms < curve.born_ms
        and lives_at(t, curve.born_ms)
        for t in profile.tensors
    )
