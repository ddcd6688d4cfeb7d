"""`legroom.verify(step)`: the same training steps plain and fitted, from the same state, compared.

In goes a function that does one training step; out comes a `Verification`. Afterwards everything is
as it was before: parameters, optimizer, random numbers.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer

from legroom.capture import StepFinder, scan_heap, updating_optimizers
from legroom.engine._adoption import Adoption
from legroom.engine._arguments import as_tuple, options_from
from legroom.engine._compare import compare, tolerance_for
from legroom.engine._fit import Fitted
from legroom.engine._observer import FitObserver
from legroom.engine._recorded_run import MOST_FURTHER_STEPS
from legroom.engine._recording import Recorder, Recording
from legroom.engine._run_report import RunReport
from legroom.engine._snapshot import Snapshot
from legroom.engine._verification import Verification
from legroom.engine._verify_script import check_steps, notes_on_measuring, verification
from legroom.engine._watch import StepWatch
from legroom.engine.graph import Executor, choose_executor
from legroom.errors import LegroomError, NothingCapturedError, NotRepeatableError, UsageError
from legroom.plan import OnProgress, PlanOptions

_FEW_BYTES, _MANY_BYTES = 256 * 2**20, 16 * 2**30


def verify(  # noqa: PLR0913 - one keyword for each thing a user may say
    step: Callable[[], object],
    *,
    model: nn.Module | Iterable[nn.Module] | None = None,
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
    preset: str | None = None,
    effort: str = "proportional",
    time_limit_s: float = 30.0,
    steps: int = 3,
    tolerance: float | None = None,
    on_progress: OnProgress | None = None,
) -> Verification:
    """Say whether training within a budget is the same as plain training.

    The step is run plain and fitted, each time from the state that is found; losses, gradients,
    parameters, buffers, optimizer state and random states are compared after each step. Afterwards
    everything is put back.

    Args:
        step: Does one training step. It must do the same when called from the same state: on a
            fixed batch, with random numbers from the shared generators.
        model: What to fit: a module or several; None: whatever the step calls with gradients.
        budget: Upper bound on the peak of a step: `"4GiB"`, `"50%"` of the plain step, or bytes.
        activations: The same as state plus a share of the rest: `"50%"`.
        stash: Upper bound on what forward leaves for backward, as in `fit`.
        disk: Let plans hold tensors on the disk, as in `fit`.
        host: Let plans hold tensors in pinned host memory, as in `fit`.
        optimizer: What updates the parameters; None: every one that exists.
        exactness: `"bitwise"`, `"rounding"` or `"lossy"`: what plans may use, and what is equal.
        executor: `"eager"` or `"inductor"`.
        ways: If any, use nothing but these ways and variants (and `hold`).
        without: Do not use these.
        preset: Follow this recipe of the literature instead of searching, as `"gist"`; the budget
            picks among its forms. `legroom ways` lists them.
        effort: `"proportional"`, or `"fixed"`, which makes plans repeatable; see `legroom.plan`.
        time_limit_s: Longest time for all that planning for one budget does.
        steps: Steps to compare.
        tolerance: The largest relative error that counts as equal; None: 0.001 with `"rounding"`,
            0.1 with `"lossy"`. With `"bitwise"` there is none.
        on_progress: Called with a stage, how much of it is done, and how much there is.

    Raises:
        UsageError: An argument is wrong.
        NotRepeatableError: Two plain runs from the same state differ.
        InfeasibleBudgetError: No plan fits.
        NothingCapturedError: Nothing of the step could be captured.
    """
    if not callable(step):
        raise UsageError(f"step must be callable without arguments, got {type(step).__name__}")
    check_steps(steps)
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
    )
    return _Run(
        step,
        options,
        choose_executor(executor, exactness),
        models=as_tuple(model, nn.Module, "model"),
        optimizers=updating_optimizers(as_tuple(optimizer, Optimizer, "optimizer")),
        num_steps=steps,
        tolerance=tolerance_for(exactness, tolerance),
        on_progress=on_progress,
    ).run()


@final
class _Run:
    """One verification."""

    def __init__(  # noqa: PLR0913 - see `verify`
        self,
        step: Callable[[], object],
        options: PlanOptions,
        executor: Executor,
        *,
        models: tuple[nn.Module, ...],
        optimizers: tuple[Optimizer, ...],
        num_steps: int,
        tolerance: float,
        on_progress: OnProgress | None,
    ) -> None:
        self._step = step
        self._options = options
        self._executor = executor
        self._models = models
        self._optimizers = optimizers
        self._num_steps = num_steps
        self._tolerance = tolerance
        self._on_progress = on_progress
        self._watch: StepWatch | None = None
        self._finder = StepFinder(lambda: None)
        self._num_further = 0
        self._failure = ""

    def run(self) -> Verification:
        snapshot = self._snapshot()
        self._most_bytes = _MANY_BYTES if self._tolerance else _FEW_BYTES
        with tempfile.TemporaryDirectory(prefix="legroom-") as temporary:
            folder = Path(temporary)
            try:
                self._tell("running the steps plain", 0)
                plain = self._record(folder / "plain", self._num_steps)
                snapshot.restore()
                again = self._record(folder / "again", 1)
                self._check_repeatable(plain, again)
                snapshot.restore()
                self._tell("running the steps fitted", 1)
                fitted, report, decisions = self._record_fitted(folder / "fitted")
            finally:
                snapshot.restore()
            self._tell("comparing", 2)
            found = compare(plain, fitted, tolerance=self._tolerance)
        return verification(
            found,
            target=getattr(self._step, "__name__", "step"),
            exactness=self._options.exactness,
            tolerance=self._tolerance,
            decisions=decisions,
            run=report,
            notes=tuple(
                notes_on_measuring(
                    self._num_further,
                    None if report is None else vars(report),
                    failure=self._failure,
                )
            ),
        )

    def _tell(self, stage: str, done: int) -> None:
        if self._on_progress is not None:
            self._on_progress(stage, done, 2)

    def _snapshot(self) -> Snapshot:
        heap = scan_heap()
        self._optimizers = self._optimizers or tuple(
            each
            for each in heap.optimizers
            if not self._models or any(_updates(each, model) for model in self._models)
        )
        return Snapshot(self._models or heap.modules, self._optimizers, heap.helpers)

    # Running -------------------------------------------------------------------------------------

    def _record(
        self, folder: Path, num_steps: int, *, on_step: Callable[[], None] = lambda: None
    ) -> Recording:
        recorder = Recorder(folder, most_bytes=self._most_bytes, models=self._models)
        self._finder = StepFinder(lambda: None)
        self._finder.observer = recorder
        with self._finder.watching():
            for _ in range(num_steps):
                self._step()
                on_step()
                recorder.step_ends()
        return recorder.save()

    def _record_fitted(
        self, folder: Path
    ) -> tuple[Recording, RunReport | None, list[tuple[str, str, str]]]:
        adoption = Adoption(self._fit)
        with contextlib.ExitStack() as stack:
            if self._models:
                targets = [self._fit(each, type(each).__name__) for each in self._models]
                for each in targets:
                    each.install()
                    stack.callback(each.undo)
            else:
                targets = []
                stack.enter_context(adoption.watching())
            recording = self._record(folder, self._num_steps, on_step=self._step_ends)
            planned: list[Any] = [*targets, *adoption.adopted]
            while self._num_further < MOST_FURTHER_STEPS and not _all_measured(planned):
                self._num_further += 1
                try:
                    self._step()
                    self._step_ends()
                except LegroomError as error:
                    self._failure = str(error)
                    break
            plans = [each.plan for each in planned if each.plan is not None]
            reports = [each.report for each in adoption.adopted] or [
                each.report() for each in targets if each.plan is not None
            ]
        if not plans:
            raise NothingCapturedError(())
        decisions = [(d.module, d.line, d.form) for plan in plans for d in plan.decisions]
        known = [each for each in reports if each is not None]
        largest = max(known, key=lambda each: each.predicted_peak_bytes, default=None)
        return recording, largest, decisions

    def _fit(self, module: nn.Module, name: str) -> Fitted:
        if self._watch is None:
            devices = [param.device for param in module.parameters()]
            self._watch = StepWatch(devices[0] if devices else torch.device("cpu"))
        return Fitted(
            module,
            self._options,
            self._executor,
            optimizers=tuple(each for each in self._optimizers if _updates(each, module)),
            watch=self._watch,
            on_progress=self._on_progress,
            observer=_Planning(self),
        )

    def around_planning(self) -> contextlib.AbstractContextManager[None]:
        """What planning runs is not recorded."""
        return self._finder.paused()

    def _step_ends(self) -> None:
        if self._watch is not None:
            self._watch.step_ends()

    def _check_repeatable(self, plain: Recording, again: Recording) -> None:
        found = compare(plain, again, tolerance=self._tolerance)
        if found.different:
            first = found.different[0]
            raise NotRepeatableError(
                "the step does not do the same when it is called again from the same state: "
                f"{first.kind} {first.name} differ.\n"
                "  try: a fixed batch instead of the next one of an iterator; random numbers from "
                "torch's, NumPy's or Python's shared generators; all optimizers in `optimizer=`"
            )


class _Planning(FitObserver):
    """Hears of plans."""

    def __init__(self, run: _Run) -> None:
        self._run = run

    def around_planning(self) -> contextlib.AbstractContextManager[object]:
        return self._run.around_planning()


def _all_measured(planned: list[Any]) -> bool:
    """Whether of every plan that is carried out a step was measured."""
    for each in planned:
        if each.plan is not None:
            report = each.report() if isinstance(each, Fitted) else each.report
            if report.measured_peak_bytes is None:
                return False
    return True


def _updates(optimizer: Optimizer, module: nn.Module) -> bool:
    mine = {id(param) for param in module.parameters()}
    return any(id(p) in mine for group in optimizer.param_groups for p in group["params"])
