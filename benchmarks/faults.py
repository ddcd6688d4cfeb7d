"""What happens to fitted training when the disk, the memory or the program fails in the middle?

In go a model and a fault's name; out comes an `Outcome`: whether training had the same bits as
plain PyTorch or ended in an error that names the tensor and the tier, whether the steps after it
had the right bits, and what was left behind. `benchmarks.move faults` counts; tests insist.
"""

# Note [Faults]
# 1. A plain twin has the same weights and sees the same batches with the same random numbers. A
#    step that failed is not one: it is done again when the fault is gone, and must then have the
#    twin's bits: loss, gradients, and weights and buffers after the update.
# 2. The disk is the tests' `FaultyFile`: a real file with faults in front of it. Where the system
#    can fail by itself, it does: files are cut, folders removed, processes killed.
# 3. Disk faults come at the first, the middle and the last write or read of a step.
# 4. Left behind counts what the tier holds, its threads and the process's descriptors, against what
#    they were before.
# 5. Where a model uses a parameter more than once, several calls that are added up before one
#    backward pass round otherwise than plain, on the disk or not (docs/fit.md). One fault does
#    that, and differs in such models; all others have a backward pass for each call.

from __future__ import annotations

import contextlib
import copy
import enum
import errno
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn.functional import dropout, gelu

import legroom
from legroom import tiers
from legroom.errors import TierError
from tests.unit.tiers.faulty_file import FaultyFile, failing

LossOf = Callable[[nn.Module, int], torch.Tensor]
Options = dict[str, Any]
MOVING: Options = {"stash": "20%", "disk": True, "without": ["remake", "replay"]}
"""How a model is fitted: what does not stay goes to the disk."""
_WARM_STEPS = 4
"""The first three under a plan are measured."""
_SLOW_SECONDS = 0.002


@dataclass
class Outcome:
    """What was seen of a fault.

    Attributes:
        injected: How often it was.
        same: After how many of these the step itself had plain's bits.
        raised: How many ended in an error.
        named_tensor, named_tier: How many of those named a tensor that the plan moves; the tier.
        unchanged: After how many errors every parameter was as before the step.
        right_after: After how many the following steps had plain's bits.
        slots, threads, descriptors: What was left behind at the end.
        messages: The first line of each kind of error.
    """

    injected: int = 0
    same: int = 0
    raised: int = 0
    named_tensor: int = 0
    named_tier: int = 0
    unchanged: int = 0
    right_after: int = 0
    slots: int = 0
    threads: int = 0
    descriptors: int = 0
    messages: list[str] = field(default_factory=list)


class Ends(enum.Enum):
    """How a step with a fault must end."""

    SAME = "plain's bits"
    TENSOR = "an error that names the tensor and the tier"
    TIER = "an error that names the tier"
    OWN = "the user's own exception"


@dataclass(frozen=True)
class Fault:
    """A fault, and how a step with it must end.

    Attributes:
        act: Injects it, a few times, and says what was seen.
        is_alone: Whether it says nothing about the model, and is injected into one only.
    """

    act: Callable[[Training], Outcome]
    ends: Ends
    is_alone: bool = False

    def is_as_it_should(self, seen: Outcome) -> bool:
        """Whether every one ended as it must, and nothing was left behind."""
        ended = {
            Ends.SAME: seen.same,
            Ends.TENSOR: min(seen.raised, seen.unchanged, seen.named_tensor, seen.named_tier),
            Ends.TIER: min(seen.raised, seen.unchanged, seen.named_tier),
            Ends.OWN: min(seen.raised, seen.unchanged),
        }[self.ends]
        left = (seen.slots, seen.threads, seen.descriptors)
        return ended == seen.right_after == seen.injected > 0 and left == (0, 0, 0)


class Training:
    """A fitted model and its plain twin; see Note [Faults], rule 1.

    Attributes:
        model, optimizer, handle: The fitted one.
        disk, file: Its tier, and what that writes to.
    """

    def __init__(self, model: nn.Module, loss_of: LossOf, disk: tiers.Disk, file: FaultyFile):
        self.model, self.twin = model, copy.deepcopy(model)
        self.optimizer, self._twin_optimizer = sgd(model), sgd(self.twin)
        self.disk, self.file = disk, file
        self.loss_of = loss_of
        self._number = 0
        self.handle: legroom.Fitted
        self.options: Options

    def fit(self, **options: Any) -> None:
        """Fit the model, and train until nothing is measured any more."""
        self.options = options
        self.handle = legroom.fit(self.model, optimizer=self.optimizer, **options)
        for _ in range(_WARM_STEPS):
            assert self.is_right(), "wrong bits without a fault"

    @property
    def labels(self) -> frozenset[str]:
        """What errors call the tensors that are moved."""
        if self.handle._latest is None:
            return frozenset()
        programs = self.handle._latest.step_plan.programs.values()
        return frozenset(each.label for program in programs for each in program.encoded)

    def gradients(self, model: nn.Module) -> torch.Tensor:
        """Forward and backward of the step that is due, from its seed."""
        torch.manual_seed(self._number)
        loss = self.loss_of(model, self._number)
        loss.backward()
        return loss.detach()

    def is_right(self, gradients: Callable[[nn.Module], torch.Tensor] | None = None) -> bool:
        """Whether the step that is due, done by both, gives both the same bits.

        Args:
            gradients: What it does up to the update; None: forward and backward.
        """
        found = []
        for model, optimizer in (
            (self.model, self.optimizer),
            (self.twin, self._twin_optimizer),
        ):
            optimizer.zero_grad()
            seen = [(gradients or self.gradients)(model)]
            seen += [param.grad.clone() for param in model.parameters() if param.grad is not None]
            optimizer.step()
            optimizer.zero_grad()
            found.append([*seen, *model.parameters(), *model.buffers()])
        self._number += 1
        mine, theirs = found
        is_same = len(mine) == len(theirs) and all(map(_same_bits, mine, theirs))
        if not is_same:  # one difference is one, not many
            self.twin.load_state_dict(self.model.state_dict())
            state = copy.deepcopy(self.optimizer.state_dict())
            self._twin_optimizer.load_state_dict(state)
        return is_same

    def left(self) -> dict[str, int]:
        """See Note [Faults], rule 4."""
        for trial in range(300):
            use = self.disk.in_use()
            if not use.num_slots:
                break
            if not trial:
                gc.collect()  # exceptions are in cycles with their frames
            time.sleep(0.01)
        descriptors = Path("/proc/self/fd")
        return {
            "slots": use.num_slots,
            "threads": use.num_threads,
            "descriptors": len(list(descriptors.iterdir())) if descriptors.is_dir() else 0,
        }


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer with state."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    flat = [each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (one, other)]
    return torch.equal(*flat)


class DemoModel(nn.Module):
    """A few layers and a loss, whose activations are a few MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(4))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """The loss."""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            value = value + dropout(gelu(layer(norm(value))), 0.1)
        return value.square().mean()


def demo_model() -> nn.Module:
    """The same each time."""
    torch.manual_seed(0)
    return DemoModel()


def demo_loss(model: nn.Module, number: int) -> torch.Tensor:
    """Of the batch of that number."""
    numbers = torch.Generator().manual_seed(number)
    loss: torch.Tensor = model(torch.randn(2048, 32, generator=numbers))
    return loss


@contextlib.contextmanager
def training(
    model: nn.Module, loss_of: LossOf, *, folder: str | None = None, **options: Any
) -> Iterator[Training]:
    """A model that is fitted on a disk that can fail."""
    with tempfile.TemporaryDirectory(prefix="legroom-faults-") as made_up:
        file = FaultyFile(Path(folder or made_up))
        disk = tiers.Disk(file)
        with tiers.use(disk), disk.closing():
            made = Training(model, loss_of, disk, file)
            made.fit(**(options or MOVING))
            try:
                yield made
            finally:
                file.on_write = file.on_read = None
                file.gate.set()
                made.handle.undo()


# -- a fault that is there while a step runs -----------------------------------------------------

Injection = Callable[[Training, float], contextlib.AbstractContextManager[object]]
_WHERE = (0.0, 0.5, 1.0)
"""At which of the writes or reads; see Note [Faults], rule 3."""


def _at(where: float, count: int, fault: Callable[..., Any]) -> Callable[..., Any]:
    """The fault, once, at that share of so many moves."""
    wanted, seen = round(where * (count - 1)), [0]

    def once(pieces: Any, offset: int) -> Any:
        seen[0] += 1
        return fault(pieces, offset) if seen[0] == wanted + 1 else None

    return once


def _num_moves(run: Training, verb: str) -> int:
    """How often a step writes or reads."""
    run.file.moves.clear()
    run.is_right()
    count = sum(each == verb for each, _ in run.file.moves)
    assert count, "nothing is on the disk"
    return count


@contextlib.contextmanager
def _moves(run: Training, verb: str, fault: Callable[..., Any]) -> Iterator[None]:
    setattr(run.file, f"on_{verb}", fault)
    try:
        yield
    finally:
        setattr(run.file, f"on_{verb}", None)


def _system_error(verb: str, number: int) -> Injection:
    def inject(run: Training, where: float) -> contextlib.AbstractContextManager[object]:
        return _moves(run, verb, _at(where, _num_moves(run, verb), failing(number)))

    return inject


@contextlib.contextmanager
def _short(run: Training, where: float) -> Iterator[None]:
    def most(pieces: Any, offset: int) -> int:
        return 4096

    with _moves(run, "write", most), _moves(run, "read", most):
        yield


@contextlib.contextmanager
def _slow(run: Training, where: float) -> Iterator[None]:
    def late(pieces: Any, offset: int) -> None:
        time.sleep(_SLOW_SECONDS * (1 + where))

    with _moves(run, "write", late), _moves(run, "read", late):
        yield


@contextlib.contextmanager
def _cut(run: Training, where: float) -> Iterator[None]:
    """Somebody cuts the file when the first tensor is to come back."""

    def cut(pieces: Any, offset: int) -> None:
        run.file.truncate(0)

    size = run.disk.in_use().reserved_bytes
    with _moves(run, "read", _at(where, _num_moves(run, "read"), cut)):
        yield
    run.file.truncate(size)


@contextlib.contextmanager
def _folder_gone(run: Training, where: float) -> Iterator[None]:
    run.file.folder.rmdir()
    try:
        yield
    finally:
        run.file.folder.mkdir()


def _no_memory(kind: type[Exception]) -> Injection:
    @contextlib.contextmanager
    def inject(run: Training, where: float) -> Iterator[None]:
        wanted = round(where * (_num_moves(run, "read") - 1))
        real, seen = torch.empty_strided, [0]

        def exhausted(*args: Any, **kwargs: Any) -> torch.Tensor:
            asks = sys._getframe(1).f_globals["__name__"]
            seen[0] += asks == "legroom.tiers._layout"
            if asks == "legroom.tiers._layout" and seen[0] == wanted + 1:
                raise kind("no memory")
            return real(*args, **kwargs)

        with mock.patch.object(torch, "empty_strided", exhausted):
            yield

    return inject


def _failing(inject: Injection) -> Fault:
    """A step with this ends in an error."""

    def act(run: Training) -> Outcome:
        seen, before = Outcome(), run.left()
        for where in _WHERE:
            seen.injected += 1
            with inject(run, where):
                _expect(seen, run, lambda: run.gradients(run.model))
            _go_on(seen, run)
        return _ended(seen, run, before)

    return Fault(act, Ends.TENSOR)


def _harmless(inject: Injection) -> Fault:
    """A step with this has plain's bits."""

    def act(run: Training) -> Outcome:
        seen, before = Outcome(), run.left()
        for where in _WHERE:
            seen.injected += 1
            with inject(run, where):
                seen.same += run.is_right()
            _go_on(seen, run)
        return _ended(seen, run, before)

    return Fault(act, Ends.SAME)


def _expect(
    seen: Outcome,
    run: Training,
    act: Callable[[], object],
    kind: type[BaseException] | tuple[type[BaseException], ...] = TierError,
) -> None:
    """Note the error that the fault leads to, and what it says."""
    params = [param.detach().clone() for param in run.model.parameters()]
    try:
        act()
    except kind as error:
        said = str(error)
        seen.raised += 1
        seen.named_tensor += any(f"'{label}'" in said for label in run.labels)
        seen.named_tier += "tier 'disk'" in said or "disk tier" in said
        line = f"{type(error).__name__}: {said.splitlines()[0] if said else ''}"
        if not seen.messages:
            seen.messages.append(line.replace(str(run.file.folder), "…"))
    seen.unchanged += all(map(_same_bits, params, run.model.parameters()))


def _go_on(seen: Outcome, run: Training) -> None:
    """The failed step again, and the one after it."""
    seen.right_after += run.is_right() and run.is_right()


def _ended(seen: Outcome, run: Training, before: dict[str, int]) -> Outcome:
    after = run.left()
    seen.slots += after["slots"]
    seen.threads = after["threads"] - before["threads"]
    seen.descriptors = after["descriptors"] - before["descriptors"]
    return seen


# -- the disk -----------------------------------------------------------------------------------


def _full_when_reserving(run: Training) -> Outcome:
    """No room, and then a quota, when a step is planned; room again after that."""
    seen, before = Outcome(), run.left()
    with _another_disk(run, limit_bytes=1 << 20):
        other = Training(copy.deepcopy(run.twin), run.loss_of, run.disk, run.file)
        other.handle = legroom.fit(other.model, optimizer=other.optimizer, **run.options)
        for full in (errno.ENOSPC, errno.EDQUOT):
            run.file.full = full
            seen.injected += 1
            _expect(seen, other, lambda: other.gradients(other.model))
        run.file.limit_bytes = None
        seen.right_after = seen.injected * (other.is_right() and other.is_right())
        seen.slots = other.left()["slots"]
        other.handle.undo()
    return _ended(seen, run, before)


def _full_when_putting(run: Training) -> Outcome:
    """No room for more than was reserved, and several forward passes before a backward pass."""
    seen, before = Outcome(injected=1), run.left()
    run.file.limit_bytes = run.disk.in_use().reserved_bytes
    try:
        _expect(seen, run, lambda: [run.loss_of(run.model, number) for number in range(40)])
    finally:
        run.file.limit_bytes = None
    _go_on(seen, run)
    return _ended(seen, run, before)


@contextlib.contextmanager
def _another_disk(run: Training, **options: Any) -> Iterator[None]:
    """Another tier in the place of the one that is used, for a while."""
    before = run.disk, run.file
    with tempfile.TemporaryDirectory(prefix="legroom-faults-") as folder:
        run.file = FaultyFile(Path(folder), **options)
        run.disk = tiers.Disk(run.file)
        try:
            with tiers.use(run.disk), run.disk.closing():
                yield
        finally:
            run.disk, run.file = before


def _hung(verb: str) -> Fault:
    """The disk does not answer, and the user ends the step with Ctrl-C."""

    def act(run: Training) -> Outcome:
        seen, before = Outcome(), run.left()
        for where in _WHERE:
            seen.injected += 1

            def hang(pieces: Any, offset: int) -> None:
                run.file.gate.clear()
                os.kill(os.getpid(), signal.SIGINT)
                run.file.gate.wait(60)

            usual = signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                with _moves(run, verb, _at(where, _num_moves(run, verb), hang)):
                    _expect(seen, run, lambda: run.gradients(run.model), KeyboardInterrupt)
            finally:
                signal.signal(signal.SIGINT, usual)
                run.file.gate.set()
            _go_on(seen, run)
        return _ended(seen, run, before)

    return Fault(act, Ends.OWN)


def _no_buffer(run: Training) -> Outcome:
    """A new tier's threads get no memory for what goes through them."""
    seen, before = Outcome(injected=1), run.left()
    with _another_disk(run):
        with mock.patch("legroom.tiers._memory.mmap.mmap", side_effect=OSError(errno.ENOMEM, "no")):
            _expect(seen, run, lambda: run.gradients(run.model))
        _go_on(seen, run)
    return _ended(seen, run, before)


def _no_thread(run: Training) -> Outcome:
    """The system gives a new tier no threads."""
    seen, before = Outcome(injected=1), run.left()
    with _another_disk(run):
        with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start")):
            _expect(seen, run, lambda: run.gradients(run.model))
        _go_on(seen, run)
    return _ended(seen, run, before)


# -- the program --------------------------------------------------------------------------------


class UserError(Exception):
    """What the user's own code raises."""


def _raises(*args: Any) -> None:
    raise UserError("not today")


def _raise_between(run: Training) -> None:
    kept = run.loss_of(run.model, 0)
    _raises(kept)


def _raise_at_loss(run: Training) -> None:
    loss = run.loss_of(run.model, 0)
    loss.register_hook(_raises)
    loss.backward()


def _raise_at_parameter(run: Training, register: str = "register_hook") -> None:
    params = [param for param in run.model.parameters() if param.requires_grad]
    hook = getattr(params[len(params) // 2], register)(_raises)
    try:
        run.gradients(run.model)
    finally:
        hook.remove()


def _raise_after_accumulating(run: Training) -> None:
    _raise_at_parameter(run, "register_post_accumulate_grad_hook")


def _raising(act: Callable[[Training], None]) -> Fault:
    def run_it(run: Training) -> Outcome:
        seen, before = Outcome(), run.left()
        for _ in _WHERE:
            seen.injected += 1
            _expect(seen, run, lambda: act(run), UserError)
            _go_on(seen, run)
        return _ended(seen, run, before)

    return Fault(run_it, Ends.OWN)


def _several_forwards(run: Training, model: nn.Module) -> torch.Tensor:
    torch.manual_seed(0)
    loss = sum(run.loss_of(model, number) for number in range(3))
    loss.backward()
    return loss.detach()


def _twice_through(run: Training, model: nn.Module) -> torch.Tensor:
    torch.manual_seed(0)
    loss = run.loss_of(model, 0)
    loss.backward(retain_graph=True)
    loss.backward()
    return loss.detach()


def _never_through(run: Training, model: nn.Module) -> torch.Tensor:
    """Somebody evaluates with gradients and keeps the losses for a while."""
    torch.manual_seed(0)
    kept = [run.loss_of(model, number) for number in range(3)]
    found = run.gradients(model)
    return found + sum(kept).detach()


def _accumulated(run: Training, model: nn.Module) -> torch.Tensor:
    torch.manual_seed(0)
    for number in range(3):
        loss = run.loss_of(model, number)
        loss.backward()
    return loss.detach()


def _same(act: Callable[[Training, nn.Module], torch.Tensor]) -> Fault:
    def run_it(run: Training) -> Outcome:
        seen, before = Outcome(), run.left()
        for _ in _WHERE:
            seen.injected += 1
            seen.same += run.is_right(lambda model: act(run, model))
            _go_on(seen, run)
        return _ended(seen, run, before)

    return Fault(run_it, Ends.SAME)


def _accumulating_fails(run: Training) -> Outcome:
    """The second of two backward passes fails; both are done again from no gradients."""
    seen, before = Outcome(), run.left()
    for where in _WHERE:
        seen.injected += 1
        fault = _at(where, _num_moves(run, "read"), failing(errno.EIO))
        run.gradients(run.model)
        with _moves(run, "read", fault):
            _expect(seen, run, lambda: run.gradients(run.model))
        run.model.zero_grad()
        seen.same += run.is_right(lambda model: _accumulated(run, model))
        _go_on(seen, run)
    return _ended(seen, run, before)


# -- processes ----------------------------------------------------------------------------------


def _loader() -> Any:
    return torch.utils.data.DataLoader(range(8), num_workers=2, multiprocessing_context="fork")


def _workers_start(run: Training, model: nn.Module) -> torch.Tensor:
    """Workers start between forward and backward, and end after it."""
    torch.manual_seed(0)
    batches = iter(_loader())
    loss = run.loss_of(model, 0)
    more = iter(_loader())
    loss.backward()
    assert len(list(batches)) == len(list(more)) == 8
    return loss.detach()


def _child(act: Callable[[], object]) -> int:
    """The exit code of a forked process that does this."""
    process = multiprocessing.get_context("fork").Process(target=act)
    process.start()
    process.join(120)
    assert process.exitcode is not None, "a forked process hangs"
    return process.exitcode


def _forked_child_ends(run: Training, model: nn.Module) -> torch.Tensor:
    torch.manual_seed(0)
    losses = [run.loss_of(model, 0)]

    def drop() -> None:
        losses.clear()
        gc.collect()

    assert _child(drop) == 0
    losses[0].backward()
    return losses[0].detach()


def _forked_child_trains(run: Training, model: nn.Module) -> torch.Tensor:
    torch.manual_seed(0)
    loss = run.loss_of(model, 0)

    def train() -> None:
        sys.exit(0 if run.is_right() and run.is_right() else 1)

    code = _child(train) if model is run.model else 0
    loss.backward()
    return loss.detach() + code


_KILLED = """
import sys
from benchmarks.faults import demo_loss, demo_model, training
with training(demo_model(), demo_loss, folder=sys.argv[1]) as run:
    print("up", flush=True)
    while True:
        run.gradients(run.model)
"""


def _killed(run: Training) -> Outcome:
    """`kill -9` in the middle of fitted training; the folder is empty, and can be used again."""
    seen, before = Outcome(), run.left()
    with tempfile.TemporaryDirectory(prefix="legroom-faults-") as folder:
        for seconds in (0.0, 0.05, 0.2):
            seen.injected += 1
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", _KILLED, folder], stdout=subprocess.PIPE
            )
            assert process.stdout is not None, "it was asked for"
            assert process.stdout.readline() == b"up\n"
            time.sleep(seconds)
            process.kill()
            process.wait()
            process.stdout.close()
            seen.slots += len(os.listdir(folder))
            with tiers.use(folder=folder):
                seen.same += run.is_right()
            _go_on(seen, run)
    return _ended(seen, run, before)


# -- several users of a tier ---------------------------------------------------------------------


def _two_models(run: Training) -> Outcome:
    """Two fitted models take turns, and one is undone while both have tensors on the disk."""
    seen, before = Outcome(injected=1), run.left()
    other = Training(copy.deepcopy(run.twin), run.loss_of, run.disk, run.file)
    other.fit(**run.options)

    def interleaved(model: nn.Module) -> torch.Tensor:
        second = other.model if model is run.model else other.twin
        torch.manual_seed(0)
        second.zero_grad()
        losses = [run.loss_of(each, number) for number in range(2) for each in (model, second)]
        if second is other.model:
            assert run.disk.in_use().num_slots, "nothing is on the disk"
            other.handle.undo()
        for loss in losses:  # not their sum: see Note [Faults], rule 5
            loss.backward()
        return torch.stack([loss.detach() for loss in losses])

    is_right = run.is_right(interleaved)
    mine, theirs = (
        [param.grad for param in each.parameters() if param.grad is not None]
        for each in (other.model, other.twin)
    )
    seen.same += is_right and all(map(_same_bits, mine, theirs))
    seen.right_after += other.is_right() and run.is_right()
    return _ended(seen, run, before)


def _offloading_too(run: Training, model: nn.Module) -> torch.Tensor:
    """A fitted model, and another one under `legroom.offload`, on the same tier."""
    torch.manual_seed(0)
    plain = copy.deepcopy(run.twin)
    first = run.loss_of(model, 0)
    with legroom.offload(tier=run.disk, min_bytes=1 << 14) as moved:
        second = run.loss_of(plain, 1)
    third = run.loss_of(model, 1)
    assert moved.num_moved, "nothing is on the disk"
    second.backward()
    first.backward()
    third.backward()
    grads = [param.grad.sum() for param in plain.parameters() if param.grad is not None]
    return torch.stack([first.detach(), second.detach(), third.detach(), *grads])


FAULTS: dict[str, Fault] = {
    "full when planned": Fault(_full_when_reserving, Ends.TIER),
    "full in forward": Fault(_full_when_putting, Ends.TENSOR),
    "write: input/output error": _failing(_system_error("write", errno.EIO)),
    "write: disk full": _failing(_system_error("write", errno.ENOSPC)),
    "write: quota": _failing(_system_error("write", errno.EDQUOT)),
    "write: permission denied": _failing(_system_error("write", errno.EACCES)),
    "read: input/output error": _failing(_system_error("read", errno.EIO)),
    "read: permission denied": _failing(_system_error("read", errno.EACCES)),
    "file cut": _failing(_cut),
    "folder removed": _harmless(_folder_gone),
    "short writes and reads": _harmless(_short),
    "slow disk": _harmless(_slow),
    "hung write, Ctrl-C": _hung("write"),
    "hung read, Ctrl-C": _hung("read"),
    "no memory to come back to: MemoryError": _failing(_no_memory(MemoryError)),
    "no memory to come back to: RuntimeError": _failing(_no_memory(RuntimeError)),
    "no memory for a thread": Fault(_no_buffer, Ends.TENSOR),
    "no threads": Fault(_no_thread, Ends.TENSOR),
    "exception between forward and backward": _raising(_raise_between),
    "exception in backward: hook of the loss": _raising(_raise_at_loss),
    "exception in backward: hook of a parameter": _raising(_raise_at_parameter),
    "exception in backward: hook after accumulating": _raising(_raise_after_accumulating),
    "three forwards, one backward": _same(_several_forwards),
    "backward twice": _same(_twice_through),
    "backward never": _same(_never_through),
    "three micro-batches": _same(_accumulated),
    "a micro-batch cannot be read": Fault(_accumulating_fails, Ends.TENSOR),
    "workers of a loader start": _same(_workers_start),
    "forked child ends": _same(_forked_child_ends),
    "forked child trains": _same(_forked_child_trains),
    "two models, one undone": Fault(_two_models, Ends.SAME),
    "offload on the same tier": _same(_offloading_too),
    "kill -9": Fault(_killed, Ends.SAME, is_alone=True),
}
"""Every fault, by what the tables call it."""
