"""How far the gradients of a lossy plan are from exact ones, and a plan that is near enough.

In go a kind of call that was just planned and its first arguments; out come relative errors of its
gradients, and, where the user set a bound, a plan within it. See Note [Accuracy].
"""

# Note [Accuracy]
# 1. Measured on the first real batch, before training, with several seeds: forward and backward
#    under the plan, and under one of the same step that uses nothing lossy. That one fits the
#    budget if any such plan does, and otherwise takes as little as possible. If even that does not
#    fit the machine, a bound is an error, and without one the error stays unknown and it is said.
# 2. The error is the norm of the difference of all gradients over the norm of the exact ones, the
#    mean over the seeds. A call that returns no loss gets a random gradient for what it returns.
# 3. Parameters are not changed, and everything else is put back: gradients, buffers, random states.
# 4. What gradients depend on more is then held with more bits, within the same budget: see Note
#    [Sensitivity] and Note [Allocation]. If that makes no better gradients, it is undone.
# 5. Above the bound, the coarsest ways are left out until the plan's measured error is within it,
#    found by bisection. If then no plan fits the budget, the one that uses nothing lossy is tried:
#    searches find floors to some tenths of a per cent, and with less to choose from one may end
#    lower. If that does not fit either, it is an error with the numbers.

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from legroom import ways
from legroom.capture import backward_habit, is_out_of_memory
from legroom.engine._sensitivity import CoarseningProbe, in_fine_form, measure_sensitivity
from legroom.engine._snapshot import everything_put_back
from legroom.engine._step_plan import cut_off, differentiated_outputs
from legroom.engine.graph import PlannedCall
from legroom.errors import GradientErrorBoundError, InfeasibleError
from legroom.plan import PlanOptions, allowed_ways
from legroom.ways import Exactness

if TYPE_CHECKING:
    from legroom.engine._fit import Fitted
    from legroom.engine._planned_kind import PlannedKind

NUM_SEEDS = 3
_Call = Callable[..., Any]


def is_lossy(kind: PlannedKind) -> bool:
    """Whether anything under its plan is held with an error."""
    used = {decision.way for decision in kind.step_plan.plan.decisions}
    return any(ways.get(name).exactness is Exactness.LOSSY for name in used)


@final
class AccuracyCheck:
    """Measures one kind of call with its first arguments; see Note [Accuracy]."""

    def __init__(
        self,
        owner: Fitted,
        kind: PlannedKind,
        options: PlanOptions,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        module: nn.Module,
        parameters: list[nn.Parameter],
    ) -> None:
        self._owner = owner
        self._kind = kind
        self._options = options
        self._arguments = pytree.tree_map(cut_off, arguments)
        self._module = module
        self._parameters = parameters
        self._expected: list[list[torch.Tensor | None]] = []
        self._run_s = 0.0

    def run(self) -> None:
        """Measure the plan's error; above the bound, plan again.

        Raises:
            GradientErrorBoundError: No plan within the budget is within the bound.
        """
        bound = self._options.max_gradient_error
        try:
            self._expected = self._exact_gradients()
        except Exception as failure:
            if bound is not None or not is_out_of_memory(failure):
                raise
            self._owner.say("how far gradients are off is not known: an exact step does not fit")
            return
        is_first = self._kind.step_plan.gradient_error is None
        error = self._measure()
        if is_first:
            error = self._allocate_bits(error)
        if bound is None or error <= bound:
            return
        rungs = _rungs(self._options)
        too_coarse, fine = 0, len(rungs)  # of the sets from `fine` on nothing is known, or enough
        best: tuple[int, float] | None = None
        nearest, middle = error, 0
        while fine - too_coarse > 1:
            middle = (too_coarse + fine) // 2
            try:
                self._plan_with(rungs[middle])
            except InfeasibleError:
                fine = middle
                continue
            error = self._measure()
            nearest = min(nearest, error)
            if error <= bound:
                fine, best = middle, (middle, error)
            else:
                too_coarse = middle
        if best is None:
            try:
                self._plan_with(rungs[-1])
            except InfeasibleError:
                raise GradientErrorBoundError(
                    bound=bound, nearest=nearest, budget_bytes=self._kind.step_plan.budget_bytes
                ) from None
            self._kind.step_plan.gradient_error = None
            return
        place, self._kind.step_plan.gradient_error = best
        if place != middle:  # the last one tried was another
            self._plan_with(rungs[place])

    def _measure(self) -> float:
        """The error of the plan as it is; noted there."""
        found = self._gradients(self._kind.call)
        errors = [_relative(*pair) for pair in zip(found, self._expected, strict=True)]
        error = self._kind.step_plan.gradient_error = statistics.mean(errors)
        return error

    def _allocate_bits(self, error: float) -> float:
        """The error with bits where they matter; see Note [Accuracy], rule 4."""
        step_plan = self._kind.step_plan
        found = step_plan.planner.adjustables(step_plan.plan.budget_bytes)
        if len(found) < 2 or not error:
            return error
        probe = CoarseningProbe(found)
        fine = replace(step_plan, programs=in_fine_form(step_plan.programs, found))
        call = self._owner.compile(fine, probe=probe)

        def error_of_probed() -> float:
            return _relative(self._gradients(call, num_seeds=1)[0], self._expected[0])

        try:
            sensitivity = measure_sensitivity(
                found, probe, error_of_probed, self._owner.progress, run_s=self._run_s
            )
        except Exception as failure:
            if not is_out_of_memory(failure):
                raise
            self._owner.say("bits are the same for all tensors: measuring with more does not fit")
            return error
        finally:
            if isinstance(call, PlannedCall):
                call.forget()
        if not step_plan.allocate(sensitivity):
            return error
        self._kind.follow_plan(self._owner)
        allocated = self._measure()
        if allocated <= error:
            return allocated
        step_plan.allocate({})
        self._kind.follow_plan(self._owner)
        step_plan.gradient_error = error
        return error

    def _plan_with(self, names: tuple[str, ...]) -> None:
        self._kind.step_plan.use(replace(self._options, ways=names))
        self._kind.follow_plan(self._owner)

    def _exact_gradients(self) -> list[list[torch.Tensor | None]]:
        """See Note [Accuracy], rule 1."""
        names = _rungs(self._options)[-1]
        exact = self._kind.step_plan.sibling(replace(self._options, ways=names, preset=None))
        call = self._owner.compile(exact)
        try:
            return self._gradients(call)
        finally:
            if isinstance(call, PlannedCall):
                call.forget()

    # -- gradients ---------------------------------------------------------------------------------

    def _gradients(
        self, call: _Call, num_seeds: int = NUM_SEEDS
    ) -> list[list[torch.Tensor | None]]:
        """Of all parameters, for each seed."""
        args, kwargs = self._arguments
        found = []
        with everything_put_back(self._module, self._parameters) as put_back:
            for seed in range(num_seeds):
                put_back()
                torch.manual_seed(seed)
                began = time.perf_counter()
                roots = list(differentiated_outputs(call(*args, **kwargs)))
                with backward_habit.like_the_loop():
                    torch.autograd.backward(roots, [_gradient_for(root, seed) for root in roots])
                found.append([param.grad for param in self._parameters])
                self._run_s = time.perf_counter() - began  # the first one compiles, perhaps
        return found


def _gradient_for(root: torch.Tensor, seed: int) -> torch.Tensor | None:
    if root.numel() == 1:
        return None
    generator = torch.Generator(root.device).manual_seed(seed)
    return torch.randn(root.shape, dtype=root.dtype, device=root.device, generator=generator)


def _relative(found: list[torch.Tensor | None], expected: list[torch.Tensor | None]) -> float:
    difference = total = 0.0
    for mine, exact in zip(found, expected, strict=True):
        if mine is not None and exact is not None:
            difference += float((mine.double() - exact.double()).square().sum())
            total += float(exact.double().square().sum())
    if not difference:
        return 0.0
    return math.sqrt(difference / total) if total else math.inf


def _rungs(options: PlanOptions) -> list[tuple[str, ...]]:
    """Sets of names that may be used, each without the coarsest lossy way of the one before."""
    names = allowed_ways(options.exactness) if options.ways is None else options.ways
    lossy = [
        name
        for name in names
        if name in ways.names() and ways.get(name).exactness is Exactness.LOSSY
    ]
    rungs = [names]
    for coarsest in sorted(lossy, key=lambda name: -ways.get(name).error):
        rungs.append(tuple(name for name in rungs[-1] if name != coarsest))
    return rungs
