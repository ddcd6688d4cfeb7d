"""Carries a plan out: the same training, within the budget.

In goes a model or a function; its calls then run as the plan says. Nothing here decides what is
kept: `plan` does.
"""

from legroom.engine._fit import Fitted, fit
from legroom.engine._run_report import RunReport

__all__ = ["Fitted", "RunReport", "fit"]
