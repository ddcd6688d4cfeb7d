"""Plain PyTorch: what everybody is compared with."""

from __future__ import annotations

from typing import final

from benchmarks.cases import Case
from benchmarks.peers._peer import BITWISE, DEFAULT, AbstractPeer, Entrant, Setting


@final
class Plain(AbstractPeer):
    """The case as it is."""

    name = "plain"
    summary = "eager PyTorch, nothing changed"
    exactness = "bitwise"
    rival = BITWISE
    quick_settings = (DEFAULT,)

    def apply(self, case: Case, setting: Setting) -> Entrant:
        """Nothing."""
        del setting
        return Entrant(case)
