"""How many elements of what forward makes are not zero, and a plan that makes use of it.

In go a kind of call that was just planned and its first arguments; where holding tensors sparsely
makes the plan faster, out comes that plan. See Note [Density].
"""

# Note [Density]
# 1. Measured on the first real batch, before training: forward under the plan, once, with a look at
#    each tensor that there is a choice for. Everything is put back.
# 2. Only where the plan adds time: one that is as fast as plain PyTorch cannot become faster. And
#    the new plan is taken only if it adds less. So the lowest budget does not change by it.
# 3. When a tensor later has more elements that are not zero than there is room for, it is held as
#    it is, the results are right, and the next call is planned anew with what it measures. What
#    keeps changing is left alone after a few times.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from legroom.engine._snapshot import everything_put_back
from legroom.engine._step_plan import cut_off
from legroom.engine.graph import PlannedCall, Witness
from legroom.plan import Place, PlanOptions, allowed_ways
from legroom.ways import Sparse, density_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from legroom.engine._fit import Fitted
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


@final
class DensityCheck:
    """Measures one kind of call with its first arguments; see Note [Density]."""

    def __init__(
        self,
        owner: Fitted,
        kind: PlannedKind,
        options: PlanOptions,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        module: nn.Module,
        parameters: Sequence[nn.Parameter],
    ) -> None:
        self._owner = owner
        self._kind = kind
        self._options = options
        self._arguments = pytree.tree_map(cut_off, arguments)
        self._module = module
        self._parameters = parameters

    def run(self) -> None:
        """Measure, and plan again where that pays."""
        if not self._may_pay():
            return
        places = self._places()
        densities = self._measure(places) if places else {}
        if not densities:
            return
        step_plan = self._kind.step_plan
        gain_ms = _WORTH * step_plan.planner.problem.step_ms
        if step_plan.use_densities(densities, self._options, least_gain_ms=gain_ms):
            self._kind.follow_plan(self._owner)

    def _may_pay(self) -> bool:
        options, step_plan = self._options, self._kind.step_plan
        names = allowed_ways(options.exactness) if options.ways is None else options.ways
        if Sparse.name not in names or options.preset is not None:
            return False
        return step_plan.plan.added_ms > _WORTH * step_plan.planner.problem.step_ms

    def _places(self) -> frozenset[Place]:
        """Of what there is a choice for."""
        problem = self._kind.step_plan.planner.problem
        found = set()
        for candidate in problem.candidates:
            op = problem.graph.operations[candidate.producer]
            tensor = problem.graph.tensors[candidate.tensor]
            dtype = getattr(torch, tensor.dtype, None)
            is_number = isinstance(dtype, torch.dtype) and dtype.is_floating_point
            if op.piece >= 0 and is_number and candidate.num_bytes >= _SMALLEST:
                found.add((op.piece, op.node, op.writes.index(candidate.tensor)))
        return frozenset(found)

    def _measure(self, places: frozenset[Place]) -> dict[Place, float]:
        """The shares of elements that are not zero, of what has many zeros."""
        found: dict[Place, float] = {}

        def see(place: Place, value: Any) -> None:
            density = density_of(value)
            if density is not None:  # of several calls, the densest
                found[place] = max(density, found.get(place, 0.0))

        call = self._owner.compile(self._kind.step_plan, witness=Witness(places, see))
        args, kwargs = self._arguments
        try:
            with everything_put_back(self._module, self._parameters):
                call(*args, **kwargs)
        finally:
            if isinstance(call, PlannedCall):
                call.forget()
        return {place: share for place, share in found.items() if share < _SPARSE}
