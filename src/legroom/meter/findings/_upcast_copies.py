"""Finds copies of tensors in another precision that are kept beside the original."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from legroom.meter._profile import Finding, Profile, TensorUse
from legroom.meter.findings._base import (
    LOW_PRECISION,
    AbstractFinder,
    counted,
    lives_at,
    num_elements,
    stash_of,
)

_CASTS = frozenset({"_to_copy", "to"})


@final
class UpcastCopies(AbstractFinder):
    """The same numbers more than once: as float32 and in half precision."""

    name = "upcast-copies"
    title = "copies in another precision, kept for backward"
    remedy = (
        "for .float() in a norm or an activation, use the fused function, which computes in "
        "float32 inside (F.rms_norm, F.layer_norm, F.softmax(dtype=...)); for what autocast casts, "
        "hold weights and activations in bfloat16 (model.bfloat16()), or cast an activation that "
        "several layers read once, before the first of them"
    )

    def find(self, profile: Profile) -> Iterable[Finding]:
        """Upcast activations, cast weights, and activations cast more than once."""
        casts = [t for t in stash_of(profile) if t.kernel in _CASTS]
        sizes = {num_elements(t) for t in casts}
        alike = [t for t in profile.tensors if num_elements(t) in sizes]
        upcast = {t: _waste_of_upcast(t, alike) for t in casts if t.dtype == "float32"}
        upcast = {t: amount for t, amount in upcast.items() if amount}
        lowered = [t for t in casts if t.dtype in LOW_PRECISION]
        weights = [t for t in lowered if _is_weight(t, alike)]
        again = _cast_again([t for t in lowered if t not in weights], alike)
        parts = [
            counted(len(upcast), "float32 copy|float32 copies"),
            counted(len(weights), "cast weight"),
            counted(len(again), "activation") + " cast again",
        ]
        groups = zip((upcast, weights, again), parts, strict=True)
        return self.report(
            profile,
            [*upcast, *weights, *again],
            ", ".join(part for group, part in groups if group) + ": {bytes}, the largest {shape}",
            waste=lambda t: upcast.get(t, t.bytes),
        )


def _waste_of_upcast(cast: TensorUse, alike: list[TensorUse]) -> int:
    """All of it if the original is kept too, half if only the copy is; 0 if it was none."""
    source = _source(cast, [t for t in alike if t.dtype in LOW_PRECISION])
    if source is None:
        return 0
    is_kept = source.kind == "weights" or (source.at_stash_peak and bool(source.kept_by))
    return cast.bytes if is_kept else cast.bytes // 2


def _is_weight(cast: TensorUse, alike: list[TensorUse]) -> bool:
    return any(
        t.kind == "weights"
        and t.dtype == "float32"
        and t.module == cast.module
        and num_elements(t) == num_elements(cast)
        for t in alike
    )


def _cast_again(casts: list[TensorUse], alike: list[TensorUse]) -> list[TensorUse]:
    """Casts of an activation that was cast before, as autocast does for each layer reading it."""
    full = [t for t in alike if t.dtype == "float32" and t.kind in {"stash", "temporaries_forward"}]
    first: dict[int, TensorUse] = {}
    again = []
    for cast in casts:
        source = _source(cast, full)
        if source is None:
            continue
        before = first.setdefault(source.id, cast)
        # Within one module (keys and values of attention) they may well be different tensors.
        if before.module != cast.module and before.dtype == cast.dtype:
            again.append(cast)
    return again


def _source(cast: TensorUse, candidates: list[TensorUse]) -> TensorUse | None:
    """What was cast: of the tensors of that size which were alive, the newest."""
    alive = [
        t
        for t in candidates
        if t.born_ms < cast.born_ms
        and lives_at(t, cast.born_ms)
        and num_elements(t) == num_elements(cast)
    ]
    return max(alive, key=lambda t: t.born_ms, default=None)
