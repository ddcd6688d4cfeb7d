"""From a call to its plan: one training step around it on tensors without memory, then planned.

In go the call with its arguments and the optimizers; out comes a `StepPlan`. The step is made up:
forward, a gradient for what it returns, backward, update. See Note [Made-up step].
"""

# Note [Made-up step]
# 1. What a training loop does around the call is not known when it is first called. If the call
#    returns a loss, backward starts there; otherwise every output that can be differentiated gets
#    a gradient of its size. A loss in the loop is therefore not in the plan: it is measured.
# 2. Gradients are let go after the update, as `zero_grad()` does.
# 3. Arguments with a graph behind them are cut off from it, or the made-up backward would use up
#    the graph of the real one.

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import nn
from torch.distributions import Distribution
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from legroom.capture import Capture, backward_habit, capture_step_and, update_alone
from legroom.engine._call_key import CallKey
from legroom.errors import InfeasibleBudgetError, InfeasibleError
from legroom.plan import (
    Budget,
    Form,
    Judge,
    OnProgress,
    PieceProgram,
    Place,
    Plan,
    Planner,
    PlanOptions,
    forms_of,
    plan_with_reserve,
    planner_of,
    stage_of,
)

_CAPTURING_SHARE, _LEAST_S = 0.8, 5.0
"""Of the time that there is, what capturing may take; and what is left for planning at least."""
_SLACK_BYTES, _SLACK_SHARE = 64 * 1024, 1000
"""What is kept free for scalars that PyTorch makes and nobody can plan, where that is possible."""


@final
@dataclass
class StepPlan:
    """A captured step with its planner, and the plan that is carried out now.

    Attributes:
        options: Those that it was captured with; see Note [Reserve].
        forms: All that the step was captured in, the one that is carried out among them.
        budget: As it was asked for; a share means another number of bytes once it is known what
            lies outside the made-up step.
        least_bytes: What the budget is at least, if it is not in bytes: what other kinds of call
            may take.
        reserved_bytes: What was measured beyond the prediction, and is kept free since.
        set_aside_bytes: What of that earlier measurements have led to.
        outside_bytes: The most that was measured beyond the prediction.
        gradient_error: How far a lossy plan's gradients are off, relatively; None if not measured.
        called: The calls that the step makes, where it is a whole one.
        whole_plain_bytes: Peak of the whole step as eager PyTorch runs it, once that was planned:
            then `plan` and `budget_bytes` are the whole step's; see Note [Training].
    """

    capture: Capture
    options: PlanOptions
    planner: Planner
    budget: Budget
    budget_bytes: int
    plan: Plan
    programs: dict[int, PieceProgram]
    notes: list[str]
    planning_s: float
    forms: tuple[Form, ...] = ()
    least_bytes: int = 0
    reserved_bytes: int = 0
    set_aside_bytes: int = 0
    outside_bytes: int = 0
    replans: int = 0
    not_planned: list[tuple[str, str]] = field(default_factory=list)
    gradient_error: float | None = None
    called: frozenset[CallKey] = frozenset()
    whole_plain_bytes: int | None = None

    @property
    def plain_peak_bytes(self) -> int:
        """The plain step's peak, with what was measured outside the made-up step."""
        if self.whole_plain_bytes is not None:
            return self.whole_plain_bytes
        return self.planner.plain.peak_bytes + self.outside_bytes

    @property
    def leaves_outputs_out(self) -> bool:
        """Whether a call makes something that could have gradients, and is planned to have none."""
        return any(each.unused_outputs for each in self.capture.sources if each.piece >= 0)

    @property
    def is_rewritten(self) -> bool:
        """Whether the call is captured in another form than it is written in."""
        return bool(self.capture.rewritten_by)

    @property
    def budget_in_words(self) -> str:
        """What was asked for, where that is not bytes; with what else sets the bytes."""
        if self.budget.num_bytes is not None:
            return ""
        own_bytes = _bytes_of(self.budget, self.planner, self.outside_bytes, 0)
        more = "; as much as calls before it" if self.least_bytes > own_bytes else ""
        return f"{self.budget}{more}"

    @property
    def slack_bytes(self) -> int:
        """What no plan could lower: scalars of the loop, beside a step that takes what plain does.

        That is one which runs as it is, or is compiled where nothing can be saved.
        """
        saves = self.plan.predicted_peak_bytes < self.planner.plain.peak_bytes
        return 0 if saves else slack_within(self.budget_bytes)

    @property
    def enough_bytes(self) -> int:
        """A budget that the lowest plan should keep, beside what was measured outside of it.

        And a quarter of that: under another plan it may be a little more.
        """
        floor_bytes = self.planner.floor_bytes
        return floor_bytes + self.outside_bytes * 5 // 4 + room_above(floor_bytes)

    def note_outside(self, excess_bytes: int) -> None:
        """So much more was measured than predicted: a share is now of a larger peak."""
        self.outside_bytes = max(self.outside_bytes, excess_bytes)
        self.budget_bytes = _bytes_of(
            self.budget, self.planner, self.outside_bytes, self.least_bytes
        )

    def use(self, options: PlanOptions) -> None:
        """Plan again for the same budget with other ways.

        Raises:
            InfeasibleError: No plan fits; everything is as it was.
        """
        started = time.perf_counter()
        planner, _ = planner_of(self.capture, options)
        self.plan, self.programs = plan_within(planner, self.budget_bytes - self.reserved_bytes)
        self.planner = planner
        self.planning_s += time.perf_counter() - started

    def sibling(self, options: PlanOptions) -> StepPlan:
        """The same step with other ways, for the same budget or the lowest that they reach."""
        other = replace(self, not_planned=[], gradient_error=None)
        other.planner, _ = planner_of(self.capture, options)
        other.budget_bytes = max(self.budget_bytes, other.planner.floor_bytes)
        other.plan, other.programs = plan_within(other.planner, other.budget_bytes)
        return other

    def use_densities(
        self, densities: Mapping[Place, float], options: PlanOptions, *, least_gain_ms: float
    ) -> bool:
        """Plan again, now that it is known how many elements are zero; whether that pays."""
        started = time.perf_counter()
        capture = replace(self.capture, planned=self.capture.planned.with_densities(densities))
        planner, _ = planner_of(capture, options)
        try:
            plan, programs = plan_within(planner, self.budget_bytes - self.reserved_bytes)
        except InfeasibleError:  # this search found less than the first; that plan still fits
            return False
        finally:
            self.planning_s += time.perf_counter() - started
        if plan.added_ms > self.plan.added_ms - least_gain_ms or programs == self.programs:
            return False
        self.capture, self.planner, self.plan, self.programs = capture, planner, plan, programs
        return True

    def note_densities(self, densities: Mapping[Place, float]) -> None:
        """From now on it is known how many elements are zero; the plan stays as it is."""
        capture = replace(self.capture, planned=self.capture.planned.with_densities(densities))
        self.planner, _ = planner_of(capture, self.options)
        self.capture = capture

    def use_lowest(self) -> None:
        """Take as little as possible, until it is known what the loop takes."""
        started = time.perf_counter()
        floor_bytes = self.planner.floor_bytes
        aim_bytes = floor_bytes + room_above(floor_bytes)
        if aim_bytes < self.plan.predicted_peak_bytes:
            self.plan, self.programs = plan_within(self.planner, aim_bytes)
        self.planning_s += time.perf_counter() - started

    def follow_whole(
        self,
        plan: Plan,
        programs: dict[int, PieceProgram],
        *,
        budget_bytes: int,
        plain_bytes: int,
        seconds: float,
    ) -> bool:
        """Carry out this call's part of a plan of the whole step; whether that is another."""
        is_other = programs != self.programs
        self.plan, self.programs = plan, programs
        self.budget_bytes, self.whole_plain_bytes = budget_bytes, plain_bytes
        self.planning_s += seconds
        return is_other

    def allocate(self, sensitivity: Mapping[Place, float]) -> bool:
        """Put bits where gradients depend on them; whether that changes the plan."""
        before = self.programs
        self.planner.allocate(sensitivity)
        budget_bytes = self.plan.budget_bytes
        self.plan, self.programs = (
            self.planner.plan(budget_bytes),
            self.planner.programs(budget_bytes),
        )
        return self.programs != before

    def tighten(self, excess_bytes: int) -> None:
        """Plan again, because so much more was measured than predicted.

        Where no plan fits what is left, but the step as it is fits the budget, what was measured
        may be a compiler's own: then nothing is compiled.

        Raises:
            InfeasibleError: No plan fits what is left.
        """
        self.replans += 1
        more_bytes = max(_SLACK_BYTES, excess_bytes - self.set_aside_bytes)
        try:
            self.reserve(more_bytes)
            self.set_aside_bytes += more_bytes
        except InfeasibleError:
            is_compiled = self.options.is_compiled and bool(self.programs)
            if not is_compiled or not self.planner.fits_as_it_is(self.budget_bytes):
                raise
            self.plan, self.programs = self.planner.as_it_is(self.budget_bytes), {}

    def reserve(self, num_bytes: int) -> None:
        """Plan again with so much more of the budget kept free.

        Raises:
            InfeasibleError: No plan fits what is left.
        """
        started = time.perf_counter()
        reserved_bytes = self.reserved_bytes + num_bytes
        left_bytes = self.budget_bytes - reserved_bytes
        self.planner.allowance.renew()
        try:
            self.plan, self.programs = plan_within(self.planner, left_bytes)
        except InfeasibleError as error:
            self._turn_elsewhere(left_bytes, error)
        self.reserved_bytes = reserved_bytes
        self.planning_s += time.perf_counter() - started

    def _turn_elsewhere(self, budget_bytes: int, error: InfeasibleError) -> None:
        """Carry out the step in another of its forms; see Note [Reserve], rules 1 and 4.

        Raises:
            InfeasibleError: None fits; that of the form which comes nearest.
        """
        errors = [error]
        for capture, options in self.forms:
            if options == self.options:
                continue
            try:
                self._turn_to(capture, options, budget_bytes)
            except InfeasibleError as failure:
                errors.append(failure)
            else:
                return
        raise min(errors, key=lambda each: each.nearest_bytes)

    def _turn_to(self, capture: Capture, options: PlanOptions, budget_bytes: int) -> None:
        planner, notes = planner_of(capture, options)
        self.plan, self.programs = plan_within(planner, budget_bytes)
        self.capture, self.options, self.planner, self.notes = capture, options, planner, notes
        self.not_planned = _not_planned(planner)


def plan_call(  # noqa: PLR0913 - a call, and what bounds its plan
    step: Callable[[], object],
    options: PlanOptions,
    *,
    models: Iterable[nn.Module],
    forgets: bool,
    least_bytes: int = 0,
    called: Callable[[], frozenset[CallKey]] = frozenset,
    most_s: float = math.inf,
    on_progress: OnProgress | None = None,
) -> StepPlan:
    """Capture a step, time its operations and plan it.

    Args:
        least_bytes: What a budget that is not in bytes is at least.
        called: Says, where the step was captured, which calls it made.
        most_s: How long all of it may take. The engine compiles the call afterwards, which takes
            about as long as capturing it: so much is left.

    Raises:
        CaptureTimeError: There is not enough time to capture it.
        NothingCapturedError: No part of the call could be captured.
        InfeasibleError: No plan fits; names the lowest budget that one does.
    """
    started = time.perf_counter()
    capture, keys = capture_step_and(
        step,
        called,
        models=models,
        exactness=options.exactness,
        rewrites=options.rewrites,
        as_written=options.plans_as_written,
        reserve=options.reserve,
        forgets=forgets,
        most_s=None if math.isinf(most_s) else _CAPTURING_SHARE * most_s,
        on_progress=stage_of(on_progress),
    )

    left_s = most_s - 2 * (time.perf_counter() - started)
    allowance = options.allowance().at_most(max(_LEAST_S, left_s))  # one for all forms of the step

    def plan(capture: Capture, options: PlanOptions) -> StepPlan:
        planner, notes = planner_of(capture, options, allowance=allowance, on_progress=on_progress)
        return _plan_capture(capture, options, planner, notes, least_bytes)

    judge: Judge[StepPlan] = Judge(
        floor_bytes=lambda step_plan: step_plan.planner.floor_bytes,
        plan=lambda step_plan: step_plan.plan,
        step_ms=lambda step_plan: step_plan.planner.graph.step_ms - step_plan.planner.rewrite_ms,
        as_written_ms=lambda step_plan: step_plan.planner.as_written_ms,
    )
    best = plan_with_reserve(capture, options, plan, judge=judge)
    best.called = keys
    best.forms = forms_of(capture, options)
    best.planning_s = time.perf_counter() - started
    return best


def _plan_capture(
    capture: Capture,
    options: PlanOptions,
    planner: Planner,
    notes: list[str],
    least_bytes: int,
) -> StepPlan:
    budget = options.chosen_budget
    assert budget is not None, "bug in legroom: fitting without a budget"
    budget_bytes = _bytes_of(budget, planner, 0, least_bytes)
    plan, programs = plan_within(planner, budget_bytes)
    return StepPlan(
        capture=capture,
        options=options,
        planner=planner,
        budget=budget,
        budget_bytes=budget_bytes,
        plan=plan,
        programs=programs,
        notes=notes,
        planning_s=0.0,
        least_bytes=least_bytes,
        not_planned=_not_planned(planner),
    )


def _not_planned(planner: Planner) -> list[tuple[str, str]]:
    return [(each.what, each.why) for each in planner.graph.not_captured]


def plan_within(planner: Planner, budget_bytes: int) -> tuple[Plan, dict[int, PieceProgram]]:
    """The plan for a budget, with a little of it kept free where there is a plan that does so.

    Not where the step fits as it is: nothing of ours is alive then.
    """
    slack_bytes = slack_within(budget_bytes)
    programs = planner.programs(budget_bytes) if planner.fits_as_it_is(budget_bytes) else None
    if programs == {}:
        return planner.plan(budget_bytes), programs
    try:
        aim = budget_bytes - slack_bytes
        return planner.plan(aim), planner.programs(aim)
    except InfeasibleError:
        pass
    try:
        return planner.plan(budget_bytes), planner.programs(budget_bytes)
    except InfeasibleBudgetError as error:
        raise error.with_room(room_above(error.floor_bytes)) from None


def slack_within(budget_bytes: int) -> int:
    """What of a budget is kept free; see `plan_within`."""
    return min(_SLACK_BYTES, budget_bytes // _SLACK_SHARE)


def room_above(floor_bytes: int) -> int:
    """What a budget should have above a floor."""
    return max(_SLACK_BYTES, floor_bytes // _SLACK_SHARE)


def _bytes_of(budget: Budget, planner: Planner, outside_bytes: int, least_bytes: int) -> int:
    """What a budget means, with so much outside the plan."""
    if budget.num_bytes is not None:
        return budget.num_bytes
    if budget.is_lowest or budget.is_free:
        inside = planner.bytes_of(budget)
        return max(inside + room_above(inside) + outside_bytes, least_bytes)
    plain = planner.plain
    wanted = budget.resolve(plain.peak_bytes + outside_bytes, plain.staying_bytes)
    return max(wanted, least_bytes)


def made_up_step(
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    optimizers: Iterable[Optimizer],
    *,
    places: frozenset[int] | None = None,
) -> Callable[[], None]:
    """A training step around a call; see Note [Made-up step].

    Args:
        places: Which outputs are in use, where that was seen; see Note [Outputs in use].
    """
    args, kwargs = pytree.tree_map(cut_off, (args, kwargs))
    optimizers = tuple(optimizers)

    def step() -> None:
        roots = list(differentiated_outputs(call(*args, **kwargs), places))
        gradients = [None if root.numel() == 1 else torch.empty_like(root) for root in roots]
        with backward_habit.like_the_loop():
            torch.autograd.backward(roots, gradients)
        for optimizer in optimizers:
            with update_alone([optimizer]) as update:
                update()
            optimizer.zero_grad()

    return step


def cut_off(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.requires_grad:
        return value.detach().requires_grad_()
    return value


def differentiated_outputs(
    output: Any, places: frozenset[int] | None = None
) -> Iterator[torch.Tensor]:
    """What a training loop presumably takes gradients of; see Note [Made-up step], rule 1.

    Args:
        places: Those that it was seen to take gradients of, among `output_tensors`.
    """
    tensors = output_tensors(output)
    if places is not None:
        yield from (tensor for place, tensor in enumerate(tensors) if place in places)
        return
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, dict):
        loss = output.get("loss")
    if isinstance(loss, torch.Tensor) and _is_loss(loss):
        yield loss
        return
    losses = [tensor for tensor in tensors if _is_loss(tensor)]
    yield from losses[:1] or (tensor for tensor in tensors if tensor.requires_grad)


def output_tensors(output: Any) -> list[torch.Tensor]:
    """The tensors among what a call returns, each once."""
    leaves = pytree.tree_leaves(_plain_containers(output))
    return list({id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}.values())


def _is_loss(value: torch.Tensor) -> bool:
    return value.requires_grad and value.numel() == 1


def _plain_containers(output: Any) -> Any:
    """Dataclasses and mappings of other libraries, and distributions, as what pytree knows.

    Of other objects nothing is expected: a cache of keys and values is returned, not trained.
    """
    if isinstance(output, dict):
        return {key: _plain_containers(value) for key, value in output.items()}
    if isinstance(output, list | tuple):
        return [_plain_containers(value) for value in output]
    if hasattr(output, "__dataclass_fields__"):
        return [_plain_containers(getattr(output, name)) for name in output.__dataclass_fields__]
    if isinstance(output, Distribution):
        return [_plain_containers(value) for value in vars(output).values()]
    return output
