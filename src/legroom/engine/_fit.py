"""`legroom.fit`: a model, or a function that returns the loss, within a budget from here on.

In goes the target; out comes a handle. Calls of the target with gradients go through a plan that
is made at the first one; everything else runs as before. See Note [Fitted calls].
"""

# Note [Fitted calls]
# 1. A module is changed in place, in what PyTorch itself keeps for compiled modules: parameters,
#    buffers, hooks and `state_dict()` stay as they are, and copies and pickles of it are plain.
# 2. Each kind of call has its own plan: see Note [Kinds of call].
# 3. Calls without gradients, inside a backward pass, under saved-tensor hooks, function transforms
#    or somebody else's compilation run as they are, and are listed.
#    How many elements are zero is seen in the first call, see Note [Density]. A lossy plan's
#    gradients are compared with exact ones before it, see Note [Accuracy].
# 4. The first steps are measured; of the very first, which compiles, only a large excess counts.
#    Above the budget: what is beyond the prediction lies outside the plan. A budget that is a share
#    is then one of a larger peak. What is still above is set aside and the step planned anew; after
#    two such attempts it is an error.

from __future__ import annotations

import contextlib
import functools
import logging
import math
import statistics
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, final

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from legroom import tiers
from legroom.capture import (
    FunctionShell,
    call_that_is_set,
    compiled_models_pass_calls_on,
    is_in_backward,
    is_in_transform,
    is_out_of_memory,
    observe_backward,
    own_call,
    saving_is_hooked,
    scan_heap,
    set_call,
    untraced,
    updating_optimizers,
)
from legroom.engine._accuracy import AccuracyCheck, is_lossy
from legroom.engine._arguments import as_tuple, options_from
from legroom.engine._call_key import CallKey, call_key
from legroom.engine._kinds_of_call import KindsOfCall
from legroom.engine._observer import FitObserver
from legroom.engine._outputs_in_use import KEPT, OutputsInUse
from legroom.engine._plain_calls import PlainCalls, reason_of
from legroom.engine._planned_kind import PlannedKind
from legroom.engine._planning_time import MOMENT_S, PlanningTime
from legroom.engine._probation import LOOKED_AT, Probation, watched_for_marks
from legroom.engine._run_report import RunReport
from legroom.engine._snapshot import remember_buffers
from legroom.engine._step_plan import (
    StepPlan,
    differentiated_outputs,
    made_up_step,
    output_tensors,
    plan_call,
)
from legroom.engine._watch import StepEnds, StepWatch
from legroom.engine._whole_step import Training
from legroom.engine.graph import (
    Eager,
    Executor,
    PlannedCall,
    Probe,
    Witness,
    choose_executor,
    guard,
)
from legroom.errors import (
    GradientErrorBoundError,
    InfeasibleError,
    LegroomError,
    TierError,
    UnplannableError,
    UsageError,
)
from legroom.plan import OnProgress, PlanOptions, allowed_ways

_log = logging.getLogger("legroom")
_installed: weakref.WeakSet[Fitted] = weakref.WeakSet()


def fit(  # noqa: PLR0913 - one keyword for each thing a user may say
    target: nn.Module | Callable[..., Any],
    *,
    budget: str | int | None = None,
    activations: str | None = None,
    stash: str | int | None = None,
    disk: str | bool = False,
    host: bool = False,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    exactness: str = "bitwise",
    executor: str = "eager",
    ways: Iterable[str] = (),
    without: Iterable[str] = (),
    max_gradient_error: float | None = None,
    check_every: int | None = None,
    on_unplannable: str = "plain",
    preset: str | None = None,
    effort: str = "proportional",
    time_limit_s: float = 30.0,
    step: Callable[[], object] | None = None,
    on_progress: OnProgress | None = None,
) -> Fitted:
    """Train within a budget: `target` is planned at its first call with gradients.

    Args:
        target: A model, which is changed in place (the one inside, of `DistributedDataParallel`
            or `DataParallel`); or a function that returns the loss: call the handle instead of it,
            and the loss is inside the plan.
        budget: Upper bound on the peak of a step: `"4GiB"`, `"50%"` of the plain step, or bytes.
        activations: The same as state plus a share of the rest: `"50%"`.
        stash: Upper bound on what forward leaves for backward: `"80MiB"`, `"25%"` of what it leaves
            in the plain step, or bytes; beside the bound on the peak, or alone.
        disk: Let plans hold tensors on the disk: True, or the folder to do so in.
        host: Let plans hold tensors of an accelerator in pinned host memory.
        optimizer: What updates the parameters; found by itself if it exists at the first step.
        exactness: `"bitwise"`, `"rounding"` or `"lossy"`: what may be used at most.
        executor: `"eager"`, the same kernels as plain PyTorch, or `"inductor"`, compiled.
        ways: If any, use nothing but these ways and variants (and `hold`).
        without: Do not use these.
        max_gradient_error: With `"lossy"`: how far gradients may be off, as 0.05 of their norm. It
            is measured on the first batch in any case; ways are left out until the bound is kept.
        check_every: With `"lossy"`: measure that again after so many calls, on the batch at hand.
        preset: Follow this recipe of the literature instead of searching, as `"gist"`; the budget
            picks among its forms. `legroom ways` lists them.
        effort: `"proportional"`, or `"fixed"`, which makes plans repeatable; see `legroom.plan`.
        time_limit_s: Longest time for all that planning for one budget does.
        step: Does one training step as the loop will. The plan is then made now, from the whole
            step, what happens outside `target` included; `step` is called four to six times on
            tensors that have no memory.
        on_progress: Called with a stage, how much of it is done, and how much there is.

    Raises:
        UsageError: An argument is wrong. What can only be seen when planning is raised by the
            first call: `InfeasibleBudgetError`, `NothingCapturedError`.
    """
    if not callable(target):
        raise UsageError(f"fit a module or a function, not {type(target).__name__}")
    called = target
    while isinstance(target, nn.parallel.DistributedDataParallel | nn.DataParallel):
        wrapper, target = type(target).__name__, target.module
        _log.warning("%s passes calls on: fitting the %s inside", wrapper, type(target).__name__)
    if any(
        vars(module).get("_modules", {}).get("_orig_mod") is target
        for module in scan_heap().modules
    ):
        raise UsageError(
            f"torch.compile was called on this {type(target).__name__}; fit what that returned"
        )
    options = options_from(
        budget=budget,
        activations=activations,
        stash=stash,
        disk=disk,
        host=host,
        exactness=exactness,
        ways=ways,
        without=without,
        preset=preset,
        effort=effort,
        time_limit_s=time_limit_s,
        max_gradient_error=max_gradient_error,
        check_every=check_every,
        on_unplannable=on_unplannable,
    )
    runner = choose_executor(executor, exactness)
    optimizers = updating_optimizers(as_tuple(optimizer, Optimizer, "optimizer"))
    fitted = Fitted(target, options, runner, optimizers=optimizers, on_progress=on_progress)
    if called is not target:
        fitted.wrapper = called
    fitted.install()
    if step is not None:
        try:
            fitted.plan_step(step)
        except BaseException:
            fitted.undo()
            raise
    return fitted


def fitted_within(module: nn.Module) -> list[Fitted]:
    """Handles through which calls of the module, or of parts of it, go."""
    parts = {id(each) for each in module.modules()}
    return [each for each in _installed if id(each._module) in parts]


def fitted_around(module: nn.Module) -> Fitted | None:
    """The handle of what the module is a part of; None if there is none."""
    for each in _installed:
        if each._module is not module and any(part is module for part in each._module.modules()):
            return each
    return None


def _options_for(executor: Executor, options: PlanOptions) -> PlanOptions:
    """The options of plans for an executor, without ways that it cannot carry out.

    Raises:
        UsageError: One of them was asked for by name.
    """
    asked = [name for name in (*options.asked, *options.moves) if name in executor.without]
    if asked:
        raise UsageError(f"executor {executor.name!r} cannot carry out {asked[0]!r}; leave it out")
    options = replace(options, is_compiled=executor.is_compiler)
    if not executor.without:
        return options
    names = allowed_ways(options.exactness) if options.ways is None else options.ways
    return replace(options, ways=tuple(name for name in names if name not in executor.without))


_NOT_FOR_PLAIN = (UsageError, InfeasibleError, TierError, GradientErrorBoundError, UnplannableError)
"""Errors of planning that are no reason to run as it is: the user asked for what cannot be."""

_PLAIN_PLACES: dict[str, Callable[[], bool]] = {
    "calls inside somebody else's compilation": torch.compiler.is_compiling,
    "calls during a backward pass, as by checkpointing": is_in_backward,
    "calls under saved-tensor hooks, as by torch.utils.checkpoint": saving_is_hooked,
    "calls inside function transforms (torch.func)": is_in_transform,
}
"""Where calls are not planned, and how to tell; see Note [Fitted calls], rule 3."""


@final
class Fitted:
    """The handle that `fit` returns: what was planned, what was measured, and the way back.

    Of a function, call the handle instead of the function; a module is called as before. See Note
    [Fitted calls] in the source.

    Attributes:
        wrapper: What the user gave, where that only passes calls on to what is fitted, as DDP.
        plain_calls: Those that trained and ran as they are.
    """

    def __init__(  # noqa: PLR0913 - `fit` explains them
        self,
        target: nn.Module | Callable[..., Any],
        options: PlanOptions,
        executor: Executor,
        *,
        optimizers: tuple[Optimizer, ...] = (),
        watch: StepWatch | None = None,
        planning_time: PlanningTime | None = None,
        training: Training | None = None,
        label: str = "",
        on_progress: OnProgress | None = None,
        on_event: Callable[[str], None] | None = None,
        observer: FitObserver | None = None,
    ) -> None:
        is_module = isinstance(target, nn.Module)
        self._module = target if isinstance(target, nn.Module) else FunctionShell(target)
        self._is_module = is_module
        self._plain = own_call(self._module)
        options = _options_for(executor, options)
        self._options = options
        self._executor = executor
        self._optimizers = optimizers
        self._watch = watch
        self._finds_steps = watch is None
        self._step_ends: StepEnds | None = None
        self._on_progress = on_progress
        self._on_event = on_event or _log.warning
        self._observer = observer or FitObserver()
        self.planning_time = planning_time or PlanningTime()
        self.training = training or Training(options, planning_time=self.planning_time)
        self.label = label or type(self._module).__name__
        self._kinds = KindsOfCall(self, options)
        self.plain_calls = PlainCalls(
            self.say, is_refused=options.on_unplannable == "error", said=self.training.said
        )
        self._probation = Probation(self.plain_calls.leave)
        self._outputs = OutputsInUse(output_tensors, differentiated_outputs)
        self._latest: PlannedKind | None = None
        self._is_busy = False
        self._has_shapes = not is_module
        self._num_failed_backwards = guard.num_failed
        self._hooks = contextlib.ExitStack()
        self._is_installed = False
        self._call_before: Callable[..., Any] | None = None
        self.wrapper: Callable[..., Any] | None = None
        functools.update_wrapper(self, target, updated=())

    # What the user sees --------------------------------------------------------------------------

    @property
    def plan(self) -> Any:
        """The `Plan` that the latest call was made under; None before the first."""
        return None if self._latest is None else self._latest.step_plan.plan

    def report(self) -> RunReport:
        """What was planned and what was measured so far.

        Of several kinds of call it is the one that takes most, not the last, smaller batch; one
        that was measured, if any was.

        Raises:
            UsageError: There was no call with gradients yet, so nothing is planned.
        """
        if self._latest is None:
            raise UsageError("nothing is planned before the first call with gradients")
        kinds = [self._latest, *self._kinds]
        measured = [kind for kind in kinds if kind.measured_peak_bytes is not None]
        largest: PlannedKind = max(
            measured or kinds, key=lambda kind: kind.step_plan.plain_peak_bytes
        )
        return largest.report(self)

    @property
    def plain_peak_bytes(self) -> int:
        """The highest of all kinds of call, as it is; 0 before the first."""
        return max((kind.step_plan.plain_peak_bytes for kind in self._kinds), default=0)

    @property
    def waits_for_whole(self) -> bool:
        """Whether the whole step around the latest call is still to be seen and planned."""
        return self._latest is not None and self.training.waits_for(self._latest)

    @property
    def latest_shapes(self) -> str:
        """Of the arguments of the latest call that was planned, and what else is new about it."""
        key = self._latest.key if self._latest is not None else None
        if key is None:
            return "smaller ones"
        others = [kind.key for kind in self._kinds if kind.key not in (None, key)]
        nearest = [each for each in others if each is not None and each.shapes == key.shapes]
        if not nearest:
            return key.in_words
        return f"{key.in_words} and other {key.difference_from(nearest[-1])}"

    def undo(self) -> None:
        """Leave the target as it was; its calls are plain again. Safe to call twice."""
        if self._is_installed and self._is_module:
            set_call(self._module, self._call_before)
        self._is_installed = False
        _installed.discard(self)
        self._hooks.close()
        for kind in self._kinds:
            kind.forget()
        if self._watch is not None and self._finds_steps:
            self._watch.close()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the target."""
        return (self.wrapper or self._module)(*args, **kwargs)

    def install(self) -> None:
        """Let calls of the target go through its plans.

        Raises:
            UsageError: They go through those of another handle, of a part, or of the whole.
        """
        name = type(self._module).__name__
        for other in fitted_within(self._module):
            if other._module is self._module:
                raise UsageError(f"{name} is already fitted; undo() its handle first")
            raise UsageError(f"a part of {name} is already fitted: {type(other._module).__name__}")
        whole = fitted_around(self._module)
        if whole is not None:
            raise UsageError(f"{name} is part of {type(whole._module).__name__}, which is fitted")
        self._call_before = call_that_is_set(self._module)
        set_call(self._module, untraced(self._call, "it is planned by legroom.fit"))
        self._is_installed = True
        _installed.add(self)
        guard.acquire()
        self._hooks.callback(guard.release)
        self._hooks.enter_context(observe_backward(watched_for_marks))
        self._hooks.enter_context(observe_backward(self._outputs.watched))
        self._hooks.enter_context(compiled_models_pass_calls_on())

    # Calls ---------------------------------------------------------------------------------------

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_busy and self._kinds.asks_for_calls:
            self._kinds.called_in_step(call_key(self._module, args, kwargs))
        why_plain = self._why_plain()
        if why_plain is not None:
            if why_plain:
                self.plain_calls.counts[why_plain] += 1
            return self._plain(*args, **kwargs)
        key = call_key(self._module, args, kwargs)
        if self.plain_calls.why(key) is not None:
            return self.plain_calls.call(key, self._plain, args, kwargs)
        if self._kinds.find(key) is None:
            num_steps = self._step_watch().num_steps
            if self._probation.holds(key, num_steps, (args, kwargs)):
                self.plain_calls.counts[LOOKED_AT] += 1
                return self._probation.call(key, self._plain, args, kwargs)
        kind = self._ready_kind(key, args, kwargs)
        if kind is not None and self._waits_for_outputs(kind, key):
            return self._outputs.call(key, self._plain, args, kwargs)
        kind = kind and self._kind_for_outputs(kind, key, args, kwargs)
        if kind is None:
            return self.plain_calls.call(key, self._plain, args, kwargs)
        return self._call_kind(kind, key, args, kwargs)

    def _waits_for_outputs(self, kind: PlannedKind, key: CallKey) -> bool:
        """Whether it is to be seen first which outputs are in use; see Note [Outputs in use]."""
        if kind.has_run or kind.num_calls or self._kinds.is_of_step(kind):
            return False
        if kind.key is None or not kind.step_plan.leaves_outputs_out:
            return False
        if self._kinds.is_limit:
            has_room = kind.step_plan.plain_peak_bytes <= kind.step_plan.budget_bytes
        else:
            free_bytes = tiers.available_bytes(self._device)
            has_room = free_bytes is None or kind.step_plan.plain_peak_bytes <= free_bytes // 2
        if not has_room or not self._outputs.holds(key, self._step_watch().num_steps):
            return False
        # Without an optimizer nothing tells that a step has ended: then a backward pass does.
        return not self._outputs.has_seen(key) or bool(self._find_optimizers())

    def _kind_for_outputs(
        self, kind: PlannedKind, key: CallKey, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PlannedKind | None:
        """The kind, planned for the outputs that are in use; None: it stays as it is."""
        if not self._outputs.is_open(key):
            return kind
        if not self._outputs.end(key):
            self._kinds.drop(key)
            self.plain_calls.leave(key, KEPT)
            return None
        if self._outputs.places(key) is None:
            return kind
        self._kinds.drop(key)
        return self._ready_kind(key, args, kwargs)

    def _ready_kind(
        self, key: CallKey, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PlannedKind | None:
        """The kind of a call, planned and measured as far as is due; None: it runs as it is."""
        kind = self._kinds.find(key)
        if kind is not None and kind.is_stale:
            self.compile_again(kind.step_plan)
        is_due = kind is not None and kind.is_due(self._options.check_every)
        has_seen_zeros = kind is not None and kind.end_density_watch()
        if kind is not None and kind.is_checked and not is_due and not has_seen_zeros:
            return kind
        if self._watch is not None:
            self._watch.close()  # planning is no part of the step that is being measured
        with self._observer.around_planning(), self.planning_time.spending():
            kind = kind or self._kind_or_none(key, args, kwargs)
            if kind is None:
                return None
            is_same = has_seen_zeros and not kind.use_density(self)
            self._measure_batch(kind, args, kwargs)
        self._latest = kind
        self._kinds.keep(key, kind)
        if not self._kinds.is_of_step(kind):
            self.training.add(self, kind)
        if is_due:
            self.say(kind.accuracy)
        elif not is_same:
            self._observer.planned(self)
        return kind

    def _call_kind(
        self, kind: PlannedKind, key: CallKey, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the target under the plan of this kind."""
        self._latest = kind
        kind.num_calls += 1
        kind.last_call = time.monotonic()
        watch = self._step_watch()
        watch.call_begins((kind.number, kind.generation), kind.on_reading)
        self._is_busy = True
        try:
            if kind.has_run:
                output = kind.call(*args, **kwargs)
            else:
                output = self._first_call(kind, key, args, kwargs)
                kind.has_run = True
        except BaseException:
            watch.close()  # what it leaves behind until it is forgotten is no part of a step
            raise
        finally:
            self._is_busy = False
        if kind.is_forgotten:
            return output
        why_anew = self._kinds.drop_if_other(key, kind)
        if why_anew is not None:  # this step is not one that was planned; the next is
            watch.close()
            self.say(f"{why_anew}: planning again")
        return output

    def _kind_or_none(
        self, key: CallKey, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PlannedKind | None:
        """A new kind of call, planned; None where it cannot be, and runs as it is.

        Raises:
            LegroomError: The budget in bytes cannot be kept, or the call itself is wrong.
        """
        why = self._kinds.why_left(key)
        if why is not None:
            self.plain_calls.leave(key, why)
            return None
        try:
            return self._plan_kind(key, args, kwargs)
        except _NOT_FOR_PLAIN:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self.plain_calls.leave(key, reason_of(error, (args, kwargs)))
            return None

    def _first_call(
        self, kind: PlannedKind, key: CallKey, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call under a new plan; as it is where that fails.

        What fails is compiling, before anything has run, or the program itself, which then fails
        again.
        """
        put_back = remember_buffers(self._module)
        began_s = time.perf_counter()
        try:
            with self.planning_time.spending():
                output = kind.call(*args, **kwargs)
            kind.compiling_s = time.perf_counter() - began_s
            return output
        except LegroomError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            why = reason_of(error, (args, kwargs))
        put_back()
        self._step_watch().close()
        self._kinds.drop(key)
        return self.plain_calls.call(key, self._plain, args, kwargs, why=why)

    def _why_plain(self) -> str | None:
        """Why a call is not planned; see Note [Fitted calls], rule 3. None where it is."""
        if self._is_busy or guard.is_planning or not torch.is_grad_enabled():
            return ""
        if self._lacks_shapes():
            return "calls that give lazy parameters their shapes"
        return next((why for why, applies in _PLAIN_PLACES.items() if applies()), None)

    def _lacks_shapes(self) -> bool:
        if not self._has_shapes:
            self._has_shapes = not any(map(is_lazy, self._module.parameters()))
        return not self._has_shapes

    def plan_step(self, step: Callable[[], object]) -> None:
        """Plan a whole step of the loop now; its calls of the target then follow that plan.

        Raises:
            CaptureFailedError: The step failed on tensors without memory.
            NothingCapturedError: It does not call the target, or no call could be captured.
            InfeasibleBudgetError: No plan fits.
        """
        self._kinds.plan_step(step)

    def _plan_kind(
        self, key: CallKey, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PlannedKind:
        return self._kinds.plan(
            self,
            key,
            lambda: made_up_step(
                self._module,
                args,
                kwargs,
                self._find_optimizers(),
                places=self._outputs.places(key),
            ),
        )

    def _measure_batch(
        self, kind: PlannedKind, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """What a plan depends on beside shapes; see Note [Accuracy] and Note [Density]."""
        if is_lossy(kind):
            parameters = [param for param in self._parameters() if param.requires_grad]
            check = AccuracyCheck(
                self, kind, kind.step_plan.options, (args, kwargs), self._module, parameters
            )
            self._is_busy = True
            try:
                check.run()
            finally:
                self._is_busy = False
        elif not kind.num_calls and self._kinds.may_hold_sparse(kind):
            kind.watch_density(self)
        kind.is_checked = True

    def _find_optimizers(self) -> tuple[Optimizer, ...]:
        if self._optimizers:
            return self._optimizers
        mine = {id(param) for param in self._parameters()}
        return tuple(
            optimizer
            for optimizer in scan_heap().optimizers
            if any(id(p) in mine for group in optimizer.param_groups for p in group["params"])
        )

    def _parameters(self) -> Iterator[nn.Parameter]:
        if self._is_module:
            yield from self._module.parameters()
        else:
            yield from (
                tensor for tensor in scan_heap().tensors if isinstance(tensor, nn.Parameter)
            )

    @property
    def _device(self) -> torch.device:
        devices = (param.device for param in self._parameters())
        return next(devices, torch.device("cpu"))

    def _step_watch(self) -> StepWatch:
        if self._watch is None:
            self._watch = StepWatch(self._device)
            self.training.watch(self._watch)
            self._step_ends = StepEnds(self._watch, self._find_optimizers())
            self._hooks.callback(self._step_ends.close)
        if self._num_failed_backwards != guard.num_failed:
            self._num_failed_backwards = guard.num_failed
            self._watch.close()  # PyTorch keeps what it had not come to until the next one
        if self._step_ends is not None:
            self._step_ends.call_begins(guard.num_backwards)
        return self._watch

    # For the plans -------------------------------------------------------------------------------

    def plan_within(
        self, step: Callable[[], object], options: PlanOptions, least_bytes: int
    ) -> StepPlan:
        """Capture a step and plan it; see `plan_call`."""
        self._is_busy = guard.is_planning = True
        try:
            return plan_call(
                step,
                options,
                models=[self._module],
                forgets=not self._kinds and guard.is_alone,
                least_bytes=least_bytes,
                called=self._kinds.keys_of_step,
                most_s=self._most_planning_s,
                on_progress=self._on_progress,
            )
        finally:
            self._is_busy = guard.is_planning = False

    @property
    def _most_planning_s(self) -> float:
        """How long planning a call may take; see Note [Kinds of call], rule 4."""
        if self.training.takes_its_time or self._kinds.asks_for_calls:
            return math.inf
        return max(MOMENT_S, self.planning_time.left_s)

    def compile(
        self,
        step_plan: StepPlan,
        *,
        probe: Probe | None = None,
        witness: Witness | None = None,
        kind: int = -1,
    ) -> Callable[..., Any]:
        """What to call under a plan.

        Args:
            probe: See `PlannedCall`; only eager kernels can be interrupted by one.
            witness: The same.
            kind: Number of the kind of call.

        Raises:
            TierSpaceError: There is no room for what the plan holds elsewhere.
        """
        if not step_plan.programs:
            return self._plain
        for tier, sizes in step_plan.plan.moved_bytes.items():
            tiers.current(tier).reserve(sum(sizes), num_tensors=len(sizes))
        return PlannedCall(
            self._plain,
            step_plan.capture.sources,
            step_plan.programs,
            executor=self._executor if probe is None and witness is None else Eager(),
            exactness=self._options.exactness,
            rewrites=step_plan.options.rewrites,
            probe=probe,
            witness=witness,
            kind=kind,
        )

    def compile_again(self, step_plan: StepPlan) -> None:
        """A plan has changed: every kind of call under it must follow.

        Raises:
            TierSpaceError: See `PlannedKind.compile`.
        """
        kinds = self._kinds.under(step_plan)
        for kind in kinds:
            kind.is_stale = True
        for kind in kinds:
            kind.compile(self)
            kind.measure_anew()

    def compile_plainer(self, step_plan: StepPlan) -> bool:
        """Compile with what takes less memory beside a plan; whether there is such a thing.

        Raises:
            TierSpaceError: See `PlannedKind.compile`.
        """
        if self._executor.plainer is None or not step_plan.programs:
            return False
        self._executor = self._executor.plainer
        self.compile_again(step_plan)
        return True

    def reserve(self, num_bytes: int) -> None:
        """Keep so much of the latest plan's budget free for what is not the step's; plan again.

        Raises:
            InfeasibleBudgetError: No plan fits what is left.
        """
        if self._latest is not None:
            self._latest.step_plan.reserve(num_bytes)
            self.compile_again(self._latest.step_plan)

    @property
    def reserved_bytes(self) -> int:
        """What is kept free of the latest plan's budget."""
        return 0 if self._latest is None else self._latest.step_plan.reserved_bytes

    def refuse(self, kind: PlannedKind, error: LegroomError) -> None:
        """A kind of call cannot be kept within the budget.

        Raises:
            LegroomError: See `KindsOfCall.refuse`.
        """
        self._kinds.refuse(kind, error)

    def progress(self, done: int, total: int) -> None:
        """Tell how far measuring has come."""
        if self._on_progress is not None:
            self._on_progress("measuring what gradients depend on", done, total)

    def say(self, text: str) -> None:
        """Tell the user that something has changed."""
        self._on_event(text)

    @property
    def left_plain(self) -> tuple[tuple[str, str], ...]:
        """What was not planned, and how often."""
        return self.plain_calls.reasons()

    @property
    def step_ms(self) -> float | None:
        """What a step takes, once some were not measured."""
        times = self._watch.step_ms if self._watch is not None else []
        return round(statistics.median(times), 4) if times else None
