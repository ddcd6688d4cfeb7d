"""Captures a training step of a running program, without computing anything.

In goes a step function, or a script that is told where its steps end; out comes a `Capture`: the
step as eager PyTorch runs it, and the same step with its modules captured as pieces to plan. See
Note [Captured steps].
"""

# Note [Captured steps]
# 1. From the start on, everything that training changes is fake, and every operation is recorded.
# 2. `CaptureStep` lists what a step that runs is captured for. The plain step tells which modules
#    are called from outside; the last two are Note [Pieces], rule 1. What one learns is data, so
#    that another copy of the program can go on with it.
# 3. Optimizer state is there from the second step on. A step function is called once before; for a
#    program whose first step is captured, the state is made by a bare update (`_update.py`).
# 4. Where rewrites in reserve would change a piece, a further step is recorded with them; where the
#    others have changed one, another without any, if that is wanted. A program that ends before has
#    still been captured once.
# 5. In the end everything is as it was; see Note [Exchange].
# 6. Where there is a limit of time, it is looked at once the plain step is recorded: to capture the
#    modules, operation by operation, takes several times as long.

from __future__ import annotations

import contextlib
import enum
import gc
import math
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, final

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from legroom.capture._autograd import BackwardCall, is_leaf, observe_backward
from legroom.capture._dynamo import Rewrite
from legroom.capture._fake import ExchangedState, is_fake
from legroom.capture._fake_rules import fake_rules
from legroom.capture._fork import can_fork, in_copy
from legroom.capture._graph import Graph, NotCaptured
from legroom.capture._heap import nested_tensors, scan_heap
from legroom.capture._kinds import Kind, Phase
from legroom.capture._loaders import loaders_without_workers
from legroom.capture._modules import Call, ModulePaths, ModuleWatch, repeated_blocks
from legroom.capture._pieces import LearnedOutputs, Pieces, SourceInfo
from legroom.capture._reads import answered_reads
from legroom.capture._rnn import rnn_operations
from legroom.capture._sites import is_model_code, line_of
from legroom.capture._step_graph import build_graph
from legroom.capture._steps import AbstractTrainingObserver
from legroom.capture._trace import Recorder
from legroom.capture._update import make_state
from legroom.errors import CaptureFailedError, CaptureTimeError, NothingCapturedError


@final
@dataclass(frozen=True)
class Capture:
    """A training step, captured.

    Attributes:
        plain: The step as eager PyTorch runs it.
        planned: The same step, with modules captured as pieces whose tensors can be planned.
        seconds: How long capturing took.
        sources: The graphs that the engine will meet again.
        rewritten_by: The rewrites that changed any of those.
        as_written: The same step, captured without rewrites; None where they changed nothing, or
            it was not asked for.
        reserve: The same step, captured with the rewrites in reserve as well; None where there are
            none, or they change nothing.
        without_reserve: Of a reserve: the planned step as it is without those rewrites.
    """

    plain: Graph
    planned: Graph
    seconds: float
    sources: tuple[SourceInfo, ...] = ()
    rewritten_by: tuple[Rewrite, ...] = ()
    as_written: Capture | None = None
    reserve: Capture | None = None
    without_reserve: Graph | None = None


class CapturedForm(enum.Enum):
    """What the pieces of a recorded step are; see Note [Captured steps], rule 4."""

    FIRST = "with the rewrites"
    AS_WRITTEN = "without any"
    RESERVE = "with those in reserve as well"


class CaptureStep(enum.Enum):
    """What a step that runs is captured for; see Note [Captured steps], rule 2."""

    WARM = "first step, which makes the optimizer's state"
    PLAIN = "the plain step"
    PLAIN_AGAIN = "the plain step once more"
    LEARN = "capturing modules"
    PIECES = "tracing forward and backward"


_T = TypeVar("_T")

_TIMES_PLAIN = 5.0
"""Capturing modules takes at least so many times as long as recording the plain step."""
WHOLE = (CaptureStep.WARM, CaptureStep.PLAIN, CaptureStep.LEARN, CaptureStep.PIECES)
"""The steps that capture everything in one process."""


@final
@dataclass(frozen=True)
class PlainStep:
    """The plain step, and which calls of modules are to become pieces.

    Attributes:
        calls: Of each call of a module from outside all others: `id()` of the module, its path, and
            why it cannot be captured, or nothing.
        is_led_by_values: Whether the optimizer evaluates its closure as often as values tell it.
    """

    graph: Graph
    calls: tuple[tuple[int, str, str], ...]
    is_led_by_values: bool = False


@final
@dataclass(frozen=True)
class FormedStep:
    """A step that was recorded with its pieces, in one form."""

    graph: Graph
    sources: tuple[SourceInfo, ...]
    rewritten_by: tuple[Rewrite, ...]


def capture_of(
    plain: Graph, forms: Mapping[CapturedForm, FormedStep], *, seconds: float
) -> Capture:
    """The plain step and the forms of it with pieces, put together.

    Raises:
        NothingCapturedError: There are no pieces.
    """
    first = forms[CapturedForm.FIRST]
    if not first.graph.num_pieces:
        own = first.graph.not_captured[len(plain.not_captured) :]
        raise NothingCapturedError(tuple(f"{note.what}: {note.why}" for note in own))

    def of(form: FormedStep) -> Capture:
        planned = replace(form.graph, blocks=plain.blocks)
        return Capture(plain, planned, seconds, form.sources, form.rewritten_by)

    capture = of(first)
    if CapturedForm.RESERVE in forms:
        reserve = of(forms[CapturedForm.RESERVE])
        capture = replace(capture, reserve=replace(reserve, without_reserve=capture.planned))
    if CapturedForm.AS_WRITTEN in forms:
        capture = replace(capture, as_written=of(forms[CapturedForm.AS_WRITTEN]))
    return capture


class StepCapture(AbstractTrainingObserver):
    """Captures the steps of a program while somebody runs it.

    Whoever runs it calls `start`, then `step_ends` at the end of each step until it returns True,
    then takes what was captured; and lets it hear of optimizers and backward passes, as a
    `StepFinder` does with its observer. `abandon` puts everything back wherever it stands.

    Args:
        steps: What the steps that run are captured for, in order.
        calls: Which calls become pieces, as a `PlainStep` of the same program has them; for `steps`
            without the plain step.
        learned: What another copy of the program has learned of its graphs; for `steps` without
            the one that learns it.
        models: Modules whose calls become pieces; none named: all that are called from outside.
        exactness: What plans may change; decides how recurrent layers are captured.
        rewrites: Change graphs before they are differentiated.
        as_written: Whether to capture the step without them as well, where they change anything.
        reserve: The rewrites of a further capture, where those change anything more; none: no such.
        forgets: Whether TorchDynamo forgets in the end all that it has compiled.
        most_s: How long capturing may take; None: as long as it likes.
        on_progress: Is told what comes next, in a few words.

    Attributes:
        plain: The plain step, as soon as it was recorded.
        learned: What was learned of TorchDynamo's graphs, by their key.
        forms: The steps with pieces that were recorded so far.
    """

    def __init__(  # noqa: PLR0913 - see above
        self,
        *,
        steps: tuple[CaptureStep, ...] = WHOLE,
        calls: tuple[tuple[int, str, str], ...] = (),
        learned: LearnedOutputs | None = None,
        models: Iterable[nn.Module] = (),
        exactness: str = "bitwise",
        rewrites: tuple[Rewrite, ...] = (),
        as_written: bool = False,
        reserve: tuple[Rewrite, ...] = (),
        forgets: bool = True,
        most_s: float | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        self.plain: PlainStep | None = None
        self.learned: LearnedOutputs = {} if learned is None else learned
        self.forms: dict[CapturedForm, FormedStep] = {}
        self._calls = calls
        self._models = list(models)
        self._exactness = exactness
        self._rewrites = rewrites
        self._as_written, self._reserve = as_written, reserve
        self._form = CapturedForm.FIRST
        self._further: list[tuple[CapturedForm, tuple[Rewrite, ...]]] = []
        self._forgets = forgets
        self._on_progress = on_progress or (lambda text: None)
        self._open = contextlib.ExitStack()
        self._steps = list(steps)
        self._pieces: Pieces | None = None
        self._first = 0
        self._optimizers: list[Optimizer] = []
        self._made_state: dict[int, torch.Tensor] = {}
        self._left_real_bytes = 0
        self._began = self._step_began = 0.0
        self._most_s = math.inf if most_s is None else most_s

    def start(self) -> None:
        """Exchange the program's state for fakes, and record from here on."""
        self._began = time.perf_counter()
        gc.collect()
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._recorder = Recorder(mode)
        self._paths = ModulePaths()
        self._watch = ModuleWatch(self._paths)
        self._exchange(mode)
        self._open.enter_context(_eager_stance())
        self._open.enter_context(loaders_without_workers())
        self._open.enter_context(fake_rules())
        self._open.enter_context(mode)
        self._open.enter_context(self._recorder)
        self._open.enter_context(answered_reads(self._recorder))
        self._plain_hooks = contextlib.ExitStack()
        self._open.enter_context(self._plain_hooks)
        if self._steps[0] is not CaptureStep.WARM:
            self._make_state()
        self._begin(self._steps[0])

    def step_ends(self) -> bool:
        """A step has ended; True when all that were needed have."""
        step = self._steps.pop(0)
        self._label()
        span = range(self._first, self._recorder.position)
        if step in (CaptureStep.PLAIN, CaptureStep.PLAIN_AGAIN):
            self._plain_hooks.close()
            self._note_plain(span)
        if self._pieces is not None:
            self._pieces.step_ends()
            self.learned.update(self._pieces.learned())
        if step is CaptureStep.PIECES:
            if self._leave_out_unfaithful(span):
                self._steps.append(CaptureStep.PIECES)  # once more, without them
            else:
                self._note_pieces(span)
        if self._steps:
            self._begin(self._steps[0])
        return not self._steps

    def _note_plain(self, span: range) -> None:
        """Keep the plain step that was recorded."""
        calls = tuple((id(call.module), call.path, call.why_not) for call in self._watch.calls)
        graph = build_graph(
            self._recorder,
            span,
            blocks=repeated_blocks(self._watch),
            not_captured=self._assumptions(),
        )
        self.plain = PlainStep(graph, calls, self._recorder.is_led_by_values)

    def _leave_out_unfaithful(self, span: range) -> bool:
        """See Note [Pieces], rule 4; whether there were any."""
        if self._exactness != "bitwise" or self._pieces is None:
            return False
        operations = [self._recorder.operations[place] for place in span]
        return self._pieces.leave_out_unfaithful(operations)

    def _note_pieces(self, span: range) -> None:
        """Keep what was recorded; see Note [Captured steps], rule 4, for what comes next."""
        assert self._pieces is not None, "legroom: no pieces after the last step"
        graph = build_graph(
            self._recorder,
            span,
            num_pieces=len(self._pieces.codes),
            not_captured=(*self._assumptions(), *self._pieces.not_captured()),
        )
        sources = tuple(source.info() for source in self._pieces.sources)
        self.forms[self._form] = FormedStep(graph, sources, self._pieces.rewritten_by)
        if self._form is CapturedForm.FIRST:
            if self._pieces.would_change(self._reserve):  # first: some budgets need it
                self._further.append((CapturedForm.RESERVE, self._reserve))
            if self._as_written and self._pieces.rewritten_by:
                self._further.append((CapturedForm.AS_WRITTEN, ()))
        if self._further:
            self._form, rewrites = self._further.pop(0)
            self._pieces.start_over(rewrites)
            self._steps.append(CaptureStep.PIECES)  # once more

    @property
    def is_enough(self) -> bool:
        """Whether `finish` has something to hand over, although more steps may come."""
        return bool(self.forms)

    @property
    def missing_forms(self) -> tuple[tuple[CapturedForm, tuple[Rewrite, ...]], ...]:
        """The forms that further steps would be captured in, with their rewrites."""
        if not self.forms or self._form in self.forms:
            return ()
        rewrites = self._reserve if self._form is CapturedForm.RESERVE else ()
        return ((self._form, rewrites), *self._further)

    def finish(self) -> Capture:
        """Put everything back and hand over what was captured.

        Raises:
            NothingCapturedError: No call of a module could be captured.
        """
        assert self.plain is not None, "legroom: finish() before the last step has ended"
        self.abandon()
        seconds = time.perf_counter() - self._began
        return capture_of(self.plain.graph, self.forms, seconds=seconds)

    def abandon(self) -> None:
        """Put everything back as it was. Safe to call twice."""
        if self._pieces is not None:
            self._pieces.remove()
        self._open.close()

    def _check_time(self) -> None:
        """Whether there is time for what comes after the plain step; see the Note, rule 6.

        Raises:
            CaptureTimeError: There is not.
        """
        now = time.perf_counter()
        if now - self._began + _TIMES_PLAIN * (now - self._step_began) > self._most_s:
            raise CaptureTimeError

    def _begin(self, step: CaptureStep) -> None:
        if step is CaptureStep.LEARN and self.plain is not None:
            self._check_time()
        self._step_began = time.perf_counter()
        self._on_progress(step.value)
        self._first = self._recorder.position
        self._recorder.phase = Phase.OTHER
        if step in (CaptureStep.PLAIN, CaptureStep.PLAIN_AGAIN):
            self._begin_plain()
        elif self._pieces is None and step is not CaptureStep.WARM:
            self._install_pieces()
        if self._pieces is not None:
            self._pieces.is_learning = step is CaptureStep.LEARN

    def _begin_plain(self) -> None:
        self._watch = ModuleWatch(self._paths)
        self._plain_hooks.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global")
        self._plain_hooks.enter_context(self._watch.installed())
        self._recorder.current_module = lambda: self._watch.current
        self._recorder.is_in_model = lambda: self._watch.is_in_model
        self._recorder.on_forward = self._count_operation

    def _install_pieces(self) -> None:
        self._recorder.on_forward = None
        calls = self._watch.calls or self._known_calls()
        self._pieces = Pieces(
            self._recorder,
            self._paths,
            calls,
            self._models,
            learned=self.learned,
            rewrites=self._rewrites,
            forgets=self._forgets,
        )
        self._open.enter_context(rnn_operations(self._exactness))
        self._pieces.install()

    def _known_calls(self) -> list[Call]:
        """The calls that another copy of this program has seen."""
        modules = {id(module): module for module in scan_heap().modules}
        calls = []
        for identity, path, why_not in self._calls:
            module = modules.get(identity)
            if module is None:  # made within the step: its calls are counted all the same
                reason = why_not or "its module is made anew in each step"
                calls.append(Call(nn.Module(), path, reason))
            else:
                self._paths.add_root(module)
                calls.append(Call(module, path, why_not))
        return calls

    def _count_operation(self, module: str) -> None:
        self._watch.num_operations[module] += 1

    def _make_state(self) -> None:
        """See Note [Captured steps], rule 3."""
        self._recorder.phase = Phase.OPTIMIZER
        for optimizer in self._optimizers:
            if not optimizer.state:
                make_state(optimizer)
                self._made_state.update((id(param), param) for param in optimizer.state)
        self._recorder.phase = Phase.OTHER
        self._label()

    # State ---------------------------------------------------------------------------------------

    def _exchange(self, mode: FakeTensorMode) -> None:
        heap = scan_heap()
        state = ExchangedState(mode)
        self._open.callback(state.put_back)
        self._open.callback(self._recorder.close)
        for kind, tensor in state.exchange(heap):
            self._recorder.add_storage(tensor, is_made=False).kind = kind
        self._paths.learn_owners(heap.modules)
        self._optimizers = list(heap.optimizers)
        for tensor in heap.tensors:
            self._add_data(tensor, state)
        self._left_real_bytes = sum(tensor.nbytes for tensor in state.left_real)
        state.left_real.clear()
        devices = {tensor.device for tensor in heap.tensors if isinstance(tensor, nn.Parameter)}
        self._recorder.device = next(iter(devices - {torch.device("cpu")}), torch.device("cpu"))

    def _add_data(self, tensor: torch.Tensor, state: ExchangedState) -> None:
        """Count a tensor that stays real: its storage, unless NumPy or a fake owns it."""
        if is_fake(tensor) or tensor.layout is not torch.strided or tensor.is_meta:
            return
        try:
            storage = tensor.untyped_storage()
            if not storage.nbytes() or not storage.data_ptr():
                return
        except (RuntimeError, NotImplementedError):  # functorch, lazy parameters, nested tensors
            return
        stand_in = state.storage_standing_for(storage)
        if stand_in is not None:
            known = self._recorder.find_storage(stand_in)
            if known is not None:
                self._recorder.alias(storage, known)
            return
        is_foreign = not storage.resizable() and not storage.is_shared()
        self._recorder.add_storage(tensor, is_made=False, num_bytes=0 if is_foreign else None)

    def _label(self) -> None:
        """Say of each known storage what it is."""
        names: dict[int, str] = {}
        for name, tensor in self._paths.tensors():
            names.setdefault(id(tensor), name)
            self._name(tensor, Kind.WEIGHTS, name)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for param in group["params"]:
                    name = names.get(id(param), "")
                    self._name(param, Kind.WEIGHTS, name)
                    self._name(param.grad, Kind.GRADIENTS, name and f"{name}.grad")
            for param, state in optimizer.state.items():
                for key, tensor in nested_tensors("", state):
                    owner = names.get(id(param), "")
                    self._name(tensor, Kind.OPTIMIZER_STATE, owner and f"{owner}.{key}")
        for name, tensor in self._paths.tensors():
            if is_leaf(tensor):
                self._name(tensor.grad, Kind.GRADIENTS, f"{name}.grad")

    def _name(self, tensor: torch.Tensor | None, kind: Kind, name: str) -> None:
        raw = None if tensor is None else self._recorder.find(tensor)
        if raw is not None and not raw.name:
            raw.kind, raw.name = kind, name

    # What the program does -----------------------------------------------------------------------

    def optimizer_starts(self, optimizer: Optimizer) -> None:
        """The optimizer phase begins; gradients are complete."""
        if not any(known is optimizer for known in self._optimizers):
            self._optimizers.append(optimizer)
        self._drop_needless_state(optimizer)
        self._label()
        self._recorder.phase = Phase.OPTIMIZER

    def _drop_needless_state(self, optimizer: Optimizer) -> None:
        """Take state that we have made from the books, of parameters that got no gradient."""
        for group in optimizer.param_groups:
            for param in group["params"]:
                if self._made_state.pop(id(param), None) is None or param.grad is not None:
                    continue
                for _, tensor in nested_tensors("", optimizer.state.pop(param, {})):
                    raw = self._recorder.find(tensor)
                    if raw is not None:
                        raw.num_bytes = 0

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        """The optimizer phase ends."""
        self._recorder.phase = Phase.OTHER

    @contextlib.contextmanager
    def around_backward(self, call: BackwardCall) -> Iterator[None]:
        """Mark what runs inside as backward, and notice gradients of gradients."""
        before = self._recorder.phase
        self._recorder.has_closure |= before is Phase.OPTIMIZER
        self._recorder.phase = Phase.BACKWARD
        self._watch.is_in_backward = True
        try:
            yield
        finally:
            self._recorder.phase = before
            self._watch.is_in_backward = False
        if call.creates_graph and self._pieces is None:
            self._watch.forbid_double_backward(call.roots)

    def _assumptions(self) -> Iterator[NotCaptured]:
        if self._left_real_bytes:
            yield NotCaptured(
                "weights that stayed real",
                "PyTorch refused to exchange them: something in C++ refers to them weakly",
                self._left_real_bytes,
            )
        sites = self._recorder.sites.sites
        for site, count in self._recorder.assumed.items():
            where = line_of(sites[site].user_file, sites[site].user_line)
            times = "a value" if count == 1 else "values"
            yield NotCaptured(
                f"{times} read at {where}", "they were not known; 1, 1.0 or True was assumed"
            )
        for reason, names in self._recorder.guessed.items():
            yield NotCaptured(f"sizes made by {', '.join(sorted(names))}", reason)


def capture_step(step: Callable[[], object], **options: Any) -> Capture:
    """Capture a training step: forward, loss, backward and optimizer.

    The step is called four times, and once more for each further capture, on tensors that have no
    memory, in a copy of this process: nothing that it does remains here. Where there can be no
    copy (see Note [Fork], rule 5), it is called here; parameters, buffers, gradients, optimizer
    state and random numbers are put back then, and what the step keeps elsewhere is not.

    Args:
        step: Runs one training step.
        **options: Those of `capture_here`.

    Raises:
        CaptureFailedError: The step raised an exception.
        NothingCapturedError: No call of a module could be captured.
    """
    return capture_step_and(step, lambda: None, **options)[0]


def capture_step_and(
    step: Callable[[], object], found: Callable[[], _T], **options: Any
) -> tuple[Capture, _T]:
    """Capture a training step, and what `found` returns afterwards where the step was called.

    Raises:
        LegroomError: See `capture_step`.
    """

    def capture(**options: Any) -> tuple[Capture, _T]:
        return capture_here(step, **options), found()

    if not can_fork():
        return capture(**options)
    on_progress = options.pop("on_progress", None)
    try:
        return in_copy(
            lambda report: capture(on_progress=report, **options),
            most_s=options.get("most_s"),
            on_progress=on_progress,
        )
    except OSError:  # no room for a copy
        return capture(on_progress=on_progress, **options)


def capture_here(  # noqa: PLR0913 - one keyword for each thing that is captured
    step: Callable[[], object],
    *,
    models: Iterable[nn.Module] = (),
    exactness: str = "bitwise",
    rewrites: tuple[Rewrite, ...] = (),
    as_written: bool = False,
    reserve: tuple[Rewrite, ...] = (),
    forgets: bool = True,
    most_s: float | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Capture:
    """Capture a training step in this process; see `capture_step`.

    Args:
        step: Runs one training step.
        models: Modules whose calls become pieces; none named: all that are called from outside.
        exactness: What plans may change: `"bitwise"`, `"rounding"` or `"lossy"`.
        rewrites: Change graphs before they are differentiated.
        as_written: Whether to capture the step without them as well, where they change anything.
        reserve: The rewrites of a further capture, where those change anything more; none: no such.
        forgets: Whether TorchDynamo forgets in the end all that it has compiled.
        most_s: How long that may take; None: as long as it likes.
        on_progress: Is told what comes next, in a few words.

    Raises:
        CaptureTimeError: It takes longer.
    """
    capture = StepCapture(
        models=models,
        exactness=exactness,
        rewrites=rewrites,
        as_written=as_written,
        reserve=reserve,
        forgets=forgets,
        most_s=most_s,
        on_progress=on_progress,
    )
    try:
        with _observed_by(capture):
            capture.start()
            while True:
                _run(step)
                if capture.step_ends():
                    break
        return capture.finish()
    finally:
        capture.abandon()


def _run(step: Callable[[], object]) -> None:
    try:
        step()
    except Exception as error:
        raise CaptureFailedError(
            f"the step failed while it was captured, on tensors that have no memory"
            f"{_place_of(error)}: {type(error).__name__}: {error}\n"
            "  what needs a tensor's memory (`.data_ptr()`, other libraries) cannot be captured, "
            "and values that are not known (`.item()`, `.numpy()`, formats, branches) are taken to "
            "be 1 or True.\n"
            "  try: a step that depends on neither, or leave that model out"
        ) from error


def _place_of(error: Exception) -> str:
    """The innermost line outside PyTorch that an error came through, as ` at model.py:12`."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    frame = next((each for each in frames if is_model_code(each.filename)), None)
    return "" if frame is None else f" at {line_of(frame.filename, frame.lineno or 0)}"


@contextlib.contextmanager
def _observed_by(observer: AbstractTrainingObserver) -> Iterator[None]:
    with contextlib.ExitStack() as hooks:
        hooks.callback(
            register_optimizer_step_pre_hook(
                lambda optimizer, args, kwargs: observer.optimizer_starts(optimizer)
            ).remove
        )
        hooks.callback(
            register_optimizer_step_post_hook(
                lambda optimizer, args, kwargs: observer.optimizer_ends(optimizer)
            ).remove
        )
        hooks.enter_context(observe_backward(observer.around_backward))
        yield


@contextlib.contextmanager
def _eager_stance() -> Iterator[None]:
    """Run what the program itself has compiled as it is written."""
    with torch.compiler.set_stance("force_eager"):
        yield
