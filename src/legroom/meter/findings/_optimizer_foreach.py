"""Finds the temporaries of an optimizer that updates all parameters at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from legroom.meter._profile import Finding, Profile, TensorUse
from legroom.meter.findings._base import AbstractFinder, most_at_once
from legroom.units import format_share


@final
class OptimizerForeach(AbstractFinder):
    """One temporary per parameter, all alive together: about the size of the model."""

    name = "optimizer-foreach"
    title = "the optimizer's foreach update holds a copy of every parameter"
    remedy = (
        "pass fused=True to the optimizer (Adam, AdamW, SGD, Adagrad), or foreach=False: "
        "the same update, parameter by parameter"
    )

    def find(self, profile: Profile) -> Iterable[Finding]:
        """Temporaries of the optimizer, at the moment of most of them, made by a foreach update."""
        alive = most_at_once(optimizer_temporaries(profile))
        if not is_foreach(profile, alive):
            return ()
        weights = sum(t.bytes for t in profile.tensors if t.kind == "weights" and t.name)
        share = format_share(sum(t.bytes for t in alive), weights)
        return self.report(
            profile,
            alive,
            f"{{count:temporary|temporaries}} at once, {{bytes}}: {share} of the weights",
        )


def optimizer_temporaries(profile: Profile) -> list[TensorUse]:
    """What was made during the update, larger than a few numbers."""
    return [
        t for t in profile.tensors if t.kind == "temporaries_optimizer" and t.bytes >= _SMALLEST
    ]


def is_foreach(profile: Profile, temporaries: list[TensorUse]) -> bool:
    """Whether a foreach operation ran on a line that made one of them."""
    places = {(t.file, t.line) for t in temporaries}
    return any(
        use.name.startswith("_foreach") and (use.file, use.line) in places
        for use in profile.operations
    )


_SMALLEST = 64
"""Step counts and scalars are of no interest; leaving them out keeps the search short."""
