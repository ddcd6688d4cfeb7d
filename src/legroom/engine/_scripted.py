"""A whole script within a budget: run it to its end, with every model that it trains fitted.

In goes a `Script`; out comes a `ScriptRun` with what was planned and measured and how the script
ended. What legroom has to say while it runs goes out as `RunEvent`s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, final

from torch import nn
from torch.optim import Optimizer

from legroom.capture import (
    AbstractTrainingObserver,
    Script,
    ScriptOutcome,
    StepFinder,
    StopScript,
    failure_of,
    kept_out_of_the_script,
    run_script,
)
from legroom.engine._adoption import Adopted, Adoption
from legroom.engine._allocator import return_freed_memory
from legroom.engine._fit import Fitted
from legroom.engine._limit import describe_overrun
from legroom.engine._model_limit import ModelLimit
from legroom.engine._observer import FitObserver
from legroom.engine._planning_time import PlanningTime
from legroom.engine._run_report import RunReport
from legroom.engine._watch import StepWatch
from legroom.engine._whole_step import Training
from legroom.engine.graph import Executor, choose_executor
from legroom.errors import (
    LegroomError,
    NothingCapturedError,
    NoTrainingError,
    ScriptError,
    UsageError,
)
from legroom.plan import OnProgress, PlanOptions

_PATIENCE = 4
"""Steps without a new model, after which calls are no longer looked at."""
_MOST_UNPLANNED = 3
"""Steps in which nothing was planned, after which that is said."""
_MEASURED = 2


@final
@dataclass(frozen=True)
class RunEvent:
    """What `legroom run` says while the script runs.

    Attributes:
        what: `"planned"`, before the first step of a model; `"measured"`, after some; `"note"`.
        report: Of that model.
        text: The note.
    """

    what: str
    report: RunReport | None = None
    text: str = ""


OnEvent = Callable[[RunEvent], None]


@final
@dataclass(frozen=True)
class ScriptRun:
    """What came of running a script within a budget.

    Attributes:
        report: What was planned and measured; None if nothing was.
        error: What went wrong, in words for the user; None if nothing did.
        exit_code: What the script itself asked for with `sys.exit`; None: nothing.
    """

    report: RunReport | None
    error: LegroomError | None = None
    exit_code: int | None = None


def fit_script(
    script: Script,
    options: PlanOptions,
    *,
    executor: str = "eager",
    limit: bool = False,
    leave: tuple[str, ...] = (),
    on_progress: OnProgress | None = None,
    on_event: OnEvent | None = None,
) -> ScriptRun:
    """Run the script to its end with every model that it trains within the budget.

    Args:
        script: What to run.
        options: Budget, ways, exactness, and how long to solve.
        executor: `"eager"` or `"inductor"`.
        limit: Limit the process to its size before the model plus the budget.
        leave: Classes or paths of modules that stay as they are.
        on_progress: Called with a stage, how much of it is done, and how much there is.
        on_event: Called with plans, measurements and notes as they come.

    Raises:
        UsageError: There is nothing to run, or an option is wrong.
    """
    return FittedScript(
        script,
        options,
        choose_executor(executor, options.exactness),
        limit=limit,
        leave=leave,
        on_progress=on_progress,
        on_event=on_event,
    ).run()


@final
class FittedScript:
    """One run of a script with its models fitted.

    Args:
        listener: Who else hears of optimizers and backward passes.
        on_step: Called at the end of each step, after it was measured.
    """

    def __init__(  # noqa: PLR0913 - see `fit_script`
        self,
        script: Script,
        options: PlanOptions,
        executor: Executor,
        *,
        limit: bool = False,
        leave: tuple[str, ...] = (),
        on_progress: OnProgress | None = None,
        on_event: OnEvent | None = None,
        listener: AbstractTrainingObserver | None = None,
        on_step: Callable[[], None] | None = None,
    ) -> None:
        options.check()
        check_budget(options.budget or options.activations or options.stash)
        self.finder = StepFinder(self._step_ends)
        self.finder.observer = _Listener(self, listener or AbstractTrainingObserver())
        self.adoption = Adoption(
            self._fit, leave=leave, owned=self.finder.owned_tensors, has_time=self._has_time
        )
        self._script = script
        self._options = options
        self._executor = executor
        self._limit = ModelLimit(options) if limit else None
        self._on_progress = on_progress
        self._on_event = on_event or (lambda event: None)
        self._on_step = on_step or (lambda: None)
        self._watch: StepWatch | None = None
        self._planning_time = PlanningTime()
        # A limited process has no room for a step above the budget.
        self._training = Training(
            options,
            defers=not limit,
            planning_time=self._planning_time,
            on_planned=self._whole_planned,
        )
        self._last_news = 0
        self._promises: dict[str, _Promise] = {}
        self._own_error: Exception | None = None
        self._has_said_nothing = False

    def run(self) -> ScriptRun:
        """Run the script to its end."""
        self._script.check()
        with contextlib.ExitStack() as stack:
            if self._limit is not None:
                return_freed_memory()  # makes steps 1.4 to 1.8 times as long: see there
                _load_what_planning_needs()
                stack.enter_context(self._limit.watching())
            stack.enter_context(self.adoption.watching())
            stack.enter_context(self.finder.watching())
            outcome = run_script(self._script)
            if self._limit is not None:
                self._limit.lift()
            if self._watch is not None:
                self._watch.close()
            report = self._report()
        if self._own_error is not None:
            if not isinstance(self._own_error, LegroomError):
                raise self._own_error
            return ScriptRun(report, self._own_error)
        return self._explain(outcome, report)

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """Somebody is about to train something: look at calls again."""
        self._last_news = self._num_steps
        self.adoption.open()

    @property
    def _num_steps(self) -> int:
        return self.finder.steps.num_steps

    # Models --------------------------------------------------------------------------------------

    def _has_time(self) -> bool:
        """Whether a new model is planned; a budget in bytes is kept however long that takes."""
        return self._training.has_limit or not self._planning_time.is_spent

    def _fit(self, module: nn.Module, name: str) -> Fitted:
        self._last_news = self._num_steps
        if self._watch is None:
            device = next(iter(module.parameters())).device
            self._watch = StepWatch(device)
            self._training.watch(self._watch)
        return Fitted(
            module,
            self._options,
            self._executor,
            watch=self._watch,
            planning_time=self._planning_time,
            training=self._training,
            label=name,
            on_progress=self._on_progress,
            on_event=lambda text: self._on_event(RunEvent("note", text=f"{name}: {text}")),
            observer=_Planning(self, name),
        )

    @contextlib.contextmanager
    def around_planning(self, name: str) -> Iterator[None]:
        """Keep what planning runs, and its failures, out of the script."""
        what = f"{name} in step {self._num_steps + 1}" if self._num_steps else name
        with self._guarded(), self.finder.paused():
            try:
                yield
            except LegroomError as error:
                error.args = (f"while planning {what}: {error}",)
                raise
            except Exception as error:
                overrun = self._overrun(error)
                if overrun is None:
                    raise
                raise ScriptError(f"while planning {what}: {overrun}") from error

    def planned(self, name: str, fitted: Fitted) -> None:
        """Say what was planned, and from which step on it is measured."""
        with self._guarded(), self.finder.paused():
            if self._limit is not None:
                self._limit.make_room(fitted)
            known = self._promises.get(name)
            if known is not None:
                text = f"{name}: planned for calls with {fitted.latest_shapes} as well"
                self._on_event(RunEvent("note", text=text))
            if not fitted.waits_for_whole:
                self._promise(fitted, known)

    def _whole_planned(self, fitted: Fitted) -> None:
        """The whole step that a model is called in was planned."""
        self._promise(fitted, self._promises.get(fitted.label))

    def _promise(self, fitted: Fitted, known: _Promise | None) -> None:
        report = replace(fitted.report(), model=fitted.label)
        if known is None:
            self._on_event(RunEvent("planned", report))
        if known is None or fitted.plain_peak_bytes > known.plain_peak_bytes:
            self._promises[fitted.label] = _Promise(
                self._num_steps, report.replans, fitted.plain_peak_bytes
            )
        if self._limit is not None:
            self._limit.apply(report.budget_bytes)

    # Steps ---------------------------------------------------------------------------------------

    def _step_ends(self) -> None:
        try:
            self._look_at_step()
        except LegroomError as error:
            error.args = (f"after step {self._num_steps}: {error}",)
            self._fail(error)
            self.finder.retire()
            raise StopScript from error
        except Exception as error:  # ours alone: the script must not suffer from it
            self._give_up(error)
        self._on_step()

    def _give_up(self, error: Exception) -> None:
        """Leave the script as it would be without us, because we have failed."""
        self.finder.retire()
        self.adoption.close()
        for each in self.adoption.adopted:
            each.undo()
        text = f"legroom failed, and the script goes on without it: {type(error).__name__}: {error}"
        self._on_event(RunEvent("note", text=text))

    def _look_at_step(self) -> None:
        if self._watch is not None:
            self._watch.step_ends()
        elif self._num_steps == _MOST_UNPLANNED:
            self._say_nothing_is_planned()
        self._look_around()

    def _look_around(self) -> None:
        """Say what was measured; stop looking at calls once nothing new turns up."""
        waiting = [name for name, promise in self._promises.items() if not promise.is_kept]
        for adopted in self.adoption.adopted if waiting else ():
            if adopted.name in waiting:
                self._tell_measured(adopted, self._promises[adopted.name])
        has_waited = self._num_steps >= self._last_news + _PATIENCE
        if self.adoption.is_open and has_waited and not waiting:
            self.adoption.close()

    def _tell_measured(self, adopted: Adopted, promise: _Promise) -> None:
        report = adopted.report
        if report is None:
            return
        if report.replans != promise.replans:
            promise.since, promise.replans = self._num_steps, report.replans
        elif report.measured_peak_bytes and self._num_steps >= promise.since + _MEASURED:
            promise.is_kept = True
            self._on_event(RunEvent("measured", replace(report, model=adopted.name)))

    def _guarded(self) -> contextlib.AbstractContextManager[None]:
        return kept_out_of_the_script(self.finder, self._fail)

    def _fail(self, error: Exception) -> None:
        overrun = self._overrun(error)
        self._own_error = error if overrun is None else ScriptError(overrun)

    def _overrun(self, error: BaseException) -> str | None:
        """What to say if the process limit is why it failed; None if it is not."""
        if self._limit is None or isinstance(error, LegroomError):
            return None
        return describe_overrun(error)

    # The end -------------------------------------------------------------------------------------

    def _report(self) -> RunReport | None:
        """Of the model with the largest predicted peak, the others listed in it."""
        left = tuple(self.adoption.left)
        reports = [
            replace(report, model=each.name, not_planned=(*report.not_planned, *left))
            for each in self.adoption.adopted
            if (report := each.report) is not None
        ]
        if not reports:
            return None
        largest = max(reports, key=lambda report: report.predicted_peak_bytes)
        return replace(largest, models=tuple(reports)) if len(reports) > 1 else largest

    def _why_nothing(self) -> tuple[str, ...]:
        left = [f"{name}: {why}" for name, why in self.adoption.left]
        left += [f"{each.name}: {why}" for each in self.adoption.adopted for why in each.why_plain]
        return tuple(left) or (
            "its training calls no module that has parameters, or inside torch.compile",
        )

    def _explain(self, outcome: ScriptOutcome, report: RunReport | None) -> ScriptRun:
        name, error = self._script.target, outcome.error
        if isinstance(error, LegroomError):
            return ScriptRun(report, error)
        elsewhere = self._trained_elsewhere() if report is None else None
        if elsewhere is not None and (error is None or isinstance(error, SystemExit)):
            return ScriptRun(None, elsewhere, 0 if error is None else _exit_code(error))
        if error is None:
            if report is None:
                self._say_nothing_is_planned()
            return ScriptRun(report)
        moment = "before it trained" if report is None else self.finder.steps.moment_of(error)
        overrun = self._overrun(error)
        if overrun is not None:
            failure: LegroomError = ScriptError(f"{name} failed {moment}: {overrun}")
        else:
            hint = "a lower budget, or a smaller batch"
            failure = failure_of(outcome, name=name, moment=moment, memory_hint=hint)
        if isinstance(failure, ScriptError) and isinstance(error, Exception):
            failure.traceback = outcome.traceback
        return ScriptRun(report, failure, _exit_code(error))

    def _trained_elsewhere(self) -> LegroomError | None:
        """What to say of a script that trains in processes of its own; it ended as plain does."""
        if self.finder.num_backwards:
            return None
        text = self.finder.children.explanation(self._script.target, "run", without="has no budget")
        return None if text is None else NoTrainingError(text)

    def _say_nothing_is_planned(self) -> None:
        """Say once why the script trains without a plan.

        Raises:
            UnplannableError: The user wants to know at once.
        """
        if self._has_said_nothing or any(each.why_plain for each in self.adoption.adopted):
            return  # said already
        self._has_said_nothing = True
        name = self._script.target
        if not self.finder.num_backwards:
            text = (
                f"{name} ended without training: no backward pass was seen, so nothing was planned"
            )
        else:
            why = "; ".join(self._why_nothing())
            text = f"{name} trains as it is, without a plan: {why}"
        if self._options.on_unplannable == "error":
            raise NothingCapturedError(self._why_nothing())
        self._on_event(RunEvent("note", text=text))


def check_budget(budget: str | int | None) -> None:
    """Raise `UsageError` if nobody said how much memory there is."""
    if budget is None:
        raise UsageError(
            "say how much memory there is: --budget 6GiB, --budget 50% (of the plain step's peak), "
            "--activations 50% (state plus half of the rest); or how much forward may leave for "
            "backward: --stash 25%. Before the script's name: what comes after it is the script's"
        )


def _exit_code(error: BaseException) -> int | None:
    """What Python would exit with; None for anything but `sys.exit`."""
    if not isinstance(error, SystemExit):
        return None
    return error.code if isinstance(error.code, int) else 1


def _load_what_planning_needs() -> None:
    """Imports that planning makes anyway: they are not the model's memory."""
    import highspy  # noqa: F401
    import torch._dynamo
    import torch._functorch.aot_autograd

    torch.compile(lambda value: value + 1, backend="aot_eager")(torch.zeros(1))
    torch._dynamo.reset()


@dataclass
class _Promise:
    """That a plan will be compared with a measurement.

    Attributes:
        since: Steps that had ended when the plan was made.
        plain_peak_bytes: Of the call that it was made for: a smaller one is not told of.
    """

    since: int
    replans: int
    plain_peak_bytes: int
    is_kept: bool = False


class _Listener(AbstractTrainingObserver):
    """Hears what the script does, for the run and for somebody else."""

    def __init__(self, run: FittedScript, other: AbstractTrainingObserver) -> None:
        self._run, self._other = run, other

    def optimizer_made(self, optimizer: Optimizer) -> None:
        self._run.optimizer_made(optimizer)
        self._other.optimizer_made(optimizer)

    def optimizer_starts(self, optimizer: Optimizer) -> None:
        self._other.optimizer_starts(optimizer)

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        self._other.optimizer_ends(optimizer)

    def around_backward(self, call: Any) -> contextlib.AbstractContextManager[object]:
        return self._other.around_backward(call)


class _Planning(FitObserver):
    """Hears of one model's plans."""

    def __init__(self, run: FittedScript, name: str) -> None:
        self._run, self._name = run, name

    def around_planning(self) -> contextlib.AbstractContextManager[object]:
        return self._run.around_planning(self._name)

    def planned(self, fitted: Fitted) -> None:
        self._run.planned(self._name, fitted)
