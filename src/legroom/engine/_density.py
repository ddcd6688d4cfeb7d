"""How many elements of what forward makes are not zero, and a plan that makes use of it.

In goes a kind of call that was just planned; its first call is watched, and where holding tensors
sparsely makes the plan faster, the second follows that one. See Note [Density].
"""

# Note [Density]
# 1. Nothing runs for it: the first real call has a look at each tensor that there is a choice for.
#    A forward pass on trial could change what a model keeps for itself.
# 2. Only where the plan adds time: one that is as fast as plain PyTorch cannot become faster. And
#    the new plan is taken only if it adds less. So the lowest budget does not change by it.
# 3. When a tensor later has more elements that are not zero than there is room for, it is held as
#    it is, the results are right, and the next call is planned anew and watched. What keeps
#    changing is left alone after a few times.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch

from legroom.engine._step_plan import StepPlan
from legroom.engine.graph import Witness
from legroom.plan import Place, PlanOptions, Problem, allowed_ways
from legroom.ways import Sparse, density_of

if TYPE_CHECKING:
    from legroom.engine._planned_kind import PlannedKind

_SMALLEST = 64 * 1024
"""Tensors of fewer bytes are not looked at."""
_SPARSE = 0.8
"""A share of elements above this is as good as all."""
_WORTH = 0.01
"""Of the step: so much time must be there to gain, and must be gained."""


def uses_sparse(kind: PlannedKind) -> bool:
    """Whether its plan relies on what was measured."""
    return any(each.way == Sparse.name for each in kind.step_plan.plan.decisions)


def density_watch(kind: PlannedKind, options: PlanOptions) -> DensityWatch | None:
    """Something that watches the first call; None where that cannot pay."""
    plan, problem = kind.step_plan.plan, kind.step_plan.planner.problem
    names = allowed_ways(options.exactness) if options.ways is None else options.ways
    if Sparse.name not in names or options.preset is not None:
        return None
    if plan.added_ms <= _WORTH * problem.step_ms:
        return None
    places = _places(problem)
    return DensityWatch(places) if places else None


def _places(problem: Problem) -> frozenset[Place]:
    """Of numbers that there is a choice for."""
    found = set()
    for candidate in problem.candidates:
        place = problem.place_of(candidate)
        tensor = problem.graph.tensors[candidate.tensor]
        dtype = getattr(torch, tensor.dtype, None)
        is_number = isinstance(dtype, torch.dtype) and dtype.is_floating_point
        if place is not None and is_number and candidate.num_bytes >= _SMALLEST:
            found.add(place)
    return frozenset(found)


@final
class DensityWatch:
    """Sees what one call makes; see Note [Density]."""

    def __init__(self, places: frozenset[Place]) -> None:
        self.witness = Witness(places, self._see)
        self._found: dict[Place, float] = {}
        self._is_over = False

    def _see(self, place: Place, value: Any) -> None:
        if self._is_over:
            return
        density = density_of(value)
        if density is not None:  # of several calls of a piece, the densest
            self._found[place] = max(density, self._found.get(place, 0.0))

    def end(self) -> bool:
        """Look no more; whether anything had many zeros."""
        self._is_over = True
        self._found = {place: share for place, share in self._found.items() if share < _SPARSE}
        return bool(self._found)

    @property
    def found(self) -> dict[Place, float]:
        """The share of elements that are not zero, of tensors that have many zeros."""
        return dict(self._found)

    def plan_again(self, step_plan: StepPlan, options: PlanOptions) -> bool:
        """Plan with what was found; whether that pays."""
        gain_ms = _WORTH * step_plan.planner.problem.step_ms
        return step_plan.use_densities(self._found, options, least_gain_ms=gain_ms)
