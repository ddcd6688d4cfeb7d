"""Who is told what a fitted target does: `legroom run` and `legroom verify` listen through this."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from legroom.engine._fit import Fitted


class FitObserver:
    """Is told when a fitted target is planned; this one hears and does nothing."""

    def around_planning(self) -> contextlib.AbstractContextManager[object]:
        """A context to plan one kind of call in. The target runs in it, on made-up tensors."""
        return contextlib.nullcontext()

    def planned(self, fitted: Fitted) -> None:
        """A new kind of call is planned and about to run; `fitted.plan` says how."""
