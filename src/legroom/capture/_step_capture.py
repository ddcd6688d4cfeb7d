"""Captures a training step of a running program, without computing anything.

In goes a step function, or a script that is told where its steps end; out comes a `Capture`: the
step as eager PyTorch runs it, and the same step with its modules captured as pieces to plan. See
Note [Four steps].
"""

# Note [Four steps]
# 1. From the start on, everything that training changes is fake, and every operation is recorded.
# 2. The first step makes the optimizer's state. The second is recorded as the plain step, and tells
#    which modules are called from outside. The third and fourth are Note [Pieces], rule 1.
# 3. Where rewrites in reserve would change a piece, a fifth step is recorded with them; where the
#    others have changed one, another without any, if that is wanted. A program that ends before has
#    still been captured once.
# 4. In the end everything is as it was; see Note [Exchange].

from __future__ import annotations

import contextlib
import enum
import gc
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import final

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
from legroom.capture._graph import Graph, NotCaptured
from legroom.capture._heap import nested_tensors, scan_heap
from legroom.capture._kinds import Kind, Phase
from legroom.capture._loaders import loaders_without_workers
from legroom.capture._modules import ModulePaths, ModuleWatch, repeated_blocks
from legroom.capture._pieces import Pieces, SourceInfo
from legroom.capture._reads import answered_reads
from legroom.capture._rnn import rnn_operations
from legroom.capture._sites import is_model_code, line_of
from legroom.capture._step_graph import build_graph
from legroom.capture._steps import AbstractTrainingObserver
from legroom.capture._trace import Recorder
from legroom.errors import CaptureFailedError, NothingCapturedError


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


@final
@dataclass(frozen=True)
class _Recorded:
    """A step that was recorded with its pieces."""

    span: range
    num_pieces: int
    not_captured: tuple[NotCaptured, ...]
    sources: tuple[SourceInfo, ...]
    rewritten_by: tuple[Rewrite, ...]


class _Form(enum.Enum):
    """What the pieces of a recorded step are; see Note [Four steps], rule 3."""

    FIRST = "with the rewrites"
    AS_WRITTEN = "without any"
    RESERVE = "with those in reserve as well"


class _Step(enum.Enum):
    WARM = "first step, which makes the optimizer's state"
    PLAIN = "the plain step"
    LEARN = "capturing modules"
    PIECES = "tracing forward and backward"


class StepCapture(AbstractTrainingObserver):
    """Captures the steps of a program while somebody runs it.

    Whoever runs it calls `start`, then `step_ends` at the end of each step until it returns True,
    then `finish`; and lets it hear of optimizers and backward passes, as a `StepFinder` does with
    its observer. `abandon` puts everything back wherever it stands.

    Args:
        models: Modules whose calls become pieces; none named: all that are called from outside.
        exactness: What plans may change; decides how recurrent layers are captured.
        rewrites: Change graphs before they are differentiated.
        as_written: Whether to capture the step without them as well, where they change anything.
        reserve: The rewrites of a further capture, where those change anything more; none: no such.
        forgets: Whether TorchDynamo forgets in the end all that it has compiled.
        on_progress: Is told what comes next, in a few words.
    """

    def __init__(
        self,
        *,
        models: Iterable[nn.Module] = (),
        exactness: str = "bitwise",
        rewrites: tuple[Rewrite, ...] = (),
        as_written: bool = False,
        reserve: tuple[Rewrite, ...] = (),
        forgets: bool = True,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        self._models = list(models)
        self._exactness = exactness
        self._rewrites = rewrites
        self._as_written, self._reserve = as_written, reserve
        self._form = _Form.FIRST
        self._further: list[tuple[_Form, tuple[Rewrite, ...]]] = []
        self._recorded: dict[_Form, _Recorded] = {}
        self._forgets = forgets
        self._on_progress = on_progress or (lambda text: None)
        self._open = contextlib.ExitStack()
        self._steps = list(_Step)
        self._spans: dict[_Step, range] = {}
        self._began = 0.0
        self._optimizers: list[Optimizer] = []
        self._pieces: Pieces | None = None

    # Steps ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Exchange everything for fakes and record from here on."""
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
        self._begin(self._steps[0])

    def step_ends(self) -> bool:
        """A step has ended; True when all that were needed have."""
        step = self._steps.pop(0)
        self._spans[step] = range(self._first, self._recorder.position)
        self._label()
        if step is _Step.PLAIN:
            self._plain_hooks.close()
        if self._pieces is not None:
            self._pieces.step_ends()
        if step is _Step.PIECES:
            if self._leave_out_unfaithful():
                self._steps.append(_Step.PIECES)  # once more, without them
            else:
                self._note_recorded()
        if self._steps:
            self._begin(self._steps[0])
        return not self._steps

    def _leave_out_unfaithful(self) -> bool:
        """See Note [Pieces], rule 4; whether there were any."""
        if self._exactness != "bitwise" or self._pieces is None:
            return False
        operations = [self._recorder.operations[place] for place in self._spans[_Step.PIECES]]
        return self._pieces.leave_out_unfaithful(operations)

    def _note_recorded(self) -> None:
        """Keep what was recorded; see Note [Four steps], rule 3, for what comes next."""
        assert self._pieces is not None, "legroom: no pieces after the last step"
        self._recorded[self._form] = _Recorded(
            span=self._spans[_Step.PIECES],
            num_pieces=len(self._pieces.codes),
            not_captured=tuple(self._pieces.not_captured()),
            sources=tuple(source.info() for source in self._pieces.sources),
            rewritten_by=self._pieces.rewritten_by,
        )
        if self._form is _Form.FIRST:
            if self._pieces.would_change(self._reserve):  # first: some budgets need it
                self._further.append((_Form.RESERVE, self._reserve))
            if self._as_written and self._pieces.rewritten_by:
                self._further.append((_Form.AS_WRITTEN, ()))
        if self._further:
            self._form, rewrites = self._further.pop(0)
            self._pieces.start_over(rewrites)
            self._steps.append(_Step.PIECES)  # once more

    @property
    def is_enough(self) -> bool:
        """Whether `finish` has something to hand over, although more steps may come."""
        return bool(self._recorded)

    def finish(self) -> Capture:
        """Put everything back and hand over what was captured.

        Raises:
            NothingCapturedError: No call of a module could be captured.
        """
        assert self.is_enough, "legroom: finish() before the last step has ended"
        self.abandon()
        first = self._recorded[_Form.FIRST]
        if not first.num_pieces:
            reasons = tuple(f"{note.what}: {note.why}" for note in first.not_captured)
            raise NothingCapturedError(reasons)
        blocks = repeated_blocks(self._watch)
        assumed = tuple(self._assumptions())
        plain = build_graph(
            self._recorder, self._spans[_Step.PLAIN], blocks=blocks, not_captured=assumed
        )
        seconds = time.perf_counter() - self._began

        def built(recorded: _Recorded) -> Capture:
            planned = build_graph(
                self._recorder,
                recorded.span,
                blocks=blocks,
                num_pieces=recorded.num_pieces,
                not_captured=assumed + recorded.not_captured,
            )
            return Capture(plain, planned, seconds, recorded.sources, recorded.rewritten_by)

        capture = built(first)
        if _Form.RESERVE in self._recorded:
            reserve = built(self._recorded[_Form.RESERVE])
            capture = replace(capture, reserve=replace(reserve, without_reserve=capture.planned))
        if _Form.AS_WRITTEN in self._recorded:
            capture = replace(capture, as_written=built(self._recorded[_Form.AS_WRITTEN]))
        return capture

    def abandon(self) -> None:
        """Put everything back as it was. Safe to call twice."""
        if self._pieces is not None:
            self._pieces.remove()
        self._open.close()

    def _begin(self, step: _Step) -> None:
        self._on_progress(step.value)
        self._first = self._recorder.position
        self._recorder.phase = Phase.OTHER
        if step is _Step.PLAIN:
            self._plain_hooks.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global")
            self._plain_hooks.enter_context(self._watch.installed())
            self._recorder.current_module = lambda: self._watch.current
            self._recorder.on_forward = self._count_operation
        elif step is _Step.LEARN:
            self._recorder.on_forward = None
            self._pieces = Pieces(
                self._recorder,
                self._paths,
                self._watch.calls,
                self._models,
                rewrites=self._rewrites,
                forgets=self._forgets,
            )
            self._open.enter_context(rnn_operations(self._exactness))
            self._pieces.install()
        elif step is _Step.PIECES and self._pieces is not None:
            self._pieces.is_learning = False

    def _count_operation(self, module: str) -> None:
        self._watch.num_operations[module] += 1

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
        self._label()
        self._recorder.phase = Phase.OPTIMIZER

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        """The optimizer phase ends."""
        self._recorder.phase = Phase.OTHER

    @contextlib.contextmanager
    def around_backward(self, call: BackwardCall) -> Iterator[None]:
        """Mark what runs inside as backward, and notice gradients of gradients."""
        before = self._recorder.phase
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


def capture_step(  # noqa: PLR0913 - one keyword for each thing that is captured
    step: Callable[[], object],
    *,
    models: Iterable[nn.Module] = (),
    exactness: str = "bitwise",
    rewrites: tuple[Rewrite, ...] = (),
    as_written: bool = False,
    reserve: tuple[Rewrite, ...] = (),
    forgets: bool = True,
    on_progress: Callable[[str], None] | None = None,
) -> Capture:
    """Capture a training step: forward, loss, backward and optimizer.

    The step is called four times, and once more for each further capture, on tensors that have no
    memory.
    Afterwards parameters, buffers, gradients, optimizer state and random numbers are as they were.

    Args:
        step: Runs one training step.
        models: Modules whose calls become pieces; none named: all that are called from outside.
        exactness: What plans may change: `"bitwise"`, `"rounding"` or `"lossy"`.
        rewrites: Change graphs before they are differentiated.
        as_written: Whether to capture the step without them as well, where they change anything.
        reserve: The rewrites of a further capture, where those change anything more; none: no such.
        forgets: Whether TorchDynamo forgets in the end all that it has compiled.
        on_progress: Is told what comes next, in a few words.

    Raises:
        CaptureFailedError: The step raised an exception.
        NothingCapturedError: No call of a module could be captured.

    Limits: what the step keeps elsewhere is not put back: an iterator over batches has moved on,
    a list of losses holds fake tensors.
    """
    capture = StepCapture(
        models=models,
        exactness=exactness,
        rewrites=rewrites,
        as_written=as_written,
        reserve=reserve,
        forgets=forgets,
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
