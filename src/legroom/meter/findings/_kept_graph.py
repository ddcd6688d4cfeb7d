"""Finds graphs of earlier steps that are still alive."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from legroom.meter._profile import Finding, Profile
from legroom.meter.findings._base import AbstractFinder


@final
class KeptGraph(AbstractFinder):
    """A result of an earlier step is held together with its graph, and the graph its tensors."""

    name = "kept-graph"
    title = "the graph of an earlier step is still alive"
    remedy = (
        "hold numbers, not tensors with a graph: append loss.item() or loss.detach(), compute "
        "metrics and validation under torch.no_grad(), do not pass retain_graph=True, and detach "
        "hidden states that you carry over"
    )

    def find(self, profile: Profile) -> Iterable[Finding]:
        """The stash that was there when the step began."""
        old = [t for t in profile.tensors if t.kind == "stash" and t.born_ms <= 0]
        keepers = sorted({keep.operation for t in old for keep in t.kept_by})
        names = ", ".join(keepers[:4]) + (", …" if len(keepers) > 4 else "")
        return self.report(
            profile,
            old,
            f"{{count:tensor}}, {{bytes}}, from before this step, still kept for backward by "
            f"{names}; if their number grows from step to step, so will the memory",
        )
