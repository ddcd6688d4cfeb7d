"""How benchmarks fit a case: which of its models, and what if a budget cannot be met.

In go a case and the options of `legroom.fit`; out comes the handle.
"""

from __future__ import annotations

from typing import Any

from torch import nn

import legroom
from benchmarks.cases import Case
from legroom.errors import InfeasibleBudgetError

_CRITIC_CASE = "wgan_gp"


def model_to_change(case: Case) -> nn.Module:
    """The model that is fitted or compiled: the main one.

    Of the GAN it is the generator, since the critic is differentiated twice.
    """
    if case.name == _CRITIC_CASE:
        return next(each for each in case.models if each is not case.model)
    return case.model


def fit_case(case: Case, **options: Any) -> legroom.Fitted:
    """Fit a case's model, planned from its whole step, and begin with the first batch again.

    Planning calls the step four to six times, which takes as many batches.
    """
    handle = legroom.fit(model_to_change(case), step=case.step, **options)
    case.rewind()
    return handle


def fit_near(case: Case, budget: str | int | None) -> legroom.Fitted:
    """Fit at the budget, or at the floor where that is above it: tables show both peaks."""
    try:
        return fit_case(case, budget=budget)
    except InfeasibleBudgetError:
        return fit_case(case, budget="lowest")
