"""Finds large temporaries of an optimizer that goes parameter by parameter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from legroom.meter._profile import Finding, Profile
from legroom.meter.findings._base import AbstractFinder, most_at_once
from legroom.meter.findings._optimizer_foreach import is_foreach, optimizer_temporaries


@final
class OptimizerTemporaries(AbstractFinder):
    """The update of the largest parameter needs copies of it: an embedding table, mostly."""

    name = "optimizer-temporaries"
    title = "temporaries while the largest parameter is updated"
    remedy = (
        "pass fused=True to the optimizer (Adam, AdamW, SGD, Adagrad): it updates in place, "
        "without temporaries"
    )

    def find(self, profile: Profile) -> Iterable[Finding]:
        """Temporaries at the moment of most of them, if the peak is in the optimizer."""
        alive = most_at_once(optimizer_temporaries(profile))
        if profile.peak_phase != "optimizer" or is_foreach(profile, alive):
            return ()
        return self.report(
            profile, alive, "{count:temporary|temporaries} at once, {bytes}, the largest {shape}"
        )
