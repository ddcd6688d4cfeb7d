"""legroom itself: everything it has, at a budget."""

from __future__ import annotations

from typing import final

from benchmarks.cases import Case
from benchmarks.fitting import fit_case
from benchmarks.peers._peer import BITWISE, AbstractPeer, Entrant, Setting


@final
class Legroom(AbstractPeer):
    """`legroom.fit`; settings are its options, and are drawn from what the others reach."""

    name = "legroom"
    summary = "legroom.fit at the peak that a peer was measured at, and at shares of plain's"
    exactness = "bitwise"
    rival = BITWISE
    settings = ()

    def apply(self, case: Case, setting: Setting) -> Entrant:
        """Fit."""
        handle = fit_case(case, **setting)
        return Entrant(case, report=lambda: handle.report().to_dict())
