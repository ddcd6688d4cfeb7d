"""How long one operation takes, and how much scratch memory it uses, by running it.

In goes a signature; out come milliseconds of one run and bytes. Cost: a few runs or some 30 ms for
each round of timing, whichever is longer, and making the inputs. See Note [Stopwatch].
"""

# Note [Stopwatch]
# 1. The first runs are not counted: they compile kernels and touch memory for the first time.
# 2. In training, an operation seldom finds its inputs where its last run left them. Up to eight
#    sets of inputs, as long as they are small together, take turns; outputs stay until their set
#    is next, so that the allocator does not hand out the same block, still in the caches, each
#    time. (With one set, elementwise operations of a ResNet-50 came out at half of what they take
#    in its training, with three at two thirds, with eight at eight tenths.)
# 3. Releasing an old output belongs to the time: in training, too, somebody pays for it.
# 4. glibc takes blocks of more than 32 MiB from the system anew, unless it happens to have such a
#    block left. In training it seldom has, so here it never has: touching new memory is then most
#    of what an operation takes.
# 5. Time during which this thread was ready to run but another program had the processor is not
#    the operation's, and is taken off where Linux counts it. What other threads wait is not seen.
# 6. Nothing that the program can notice changes: not its random numbers, modes or gradients.

from __future__ import annotations

import contextlib
import gc
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch.profiler import ProfilerActivity

from legroom.capture import arguments_of, real_tensors
from legroom.errors import UsageError
from legroom.meter._costs import OperationCost, tensors_in
from legroom.meter._events import read_events
from legroom.meter._profiler import profiler_is_running, start_profiler, stop_profiler
from legroom.meter._resident import release_free_heap

LONG_MS = 200.0
"""From here on, one run counts and there is no second round."""

_ROUND_MS = 30.0
_LEAST_RUNS, _MOST_RUNS = 2, 48
_MOST_SETS = 8
_SETS_BYTES = 64 * 1024**2
_FRESH_BYTES = 32 * 1024**2

_WITH_DOMAIN = ("log", "pow", "sqrt")
"""Parts of the names of operations that are slow, or wrong, on negative numbers."""

_NOT_RUN = (
    "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "c10d", "profiler", "symm_mem",
)  # fmt: skip
"""Namespaces of operations that wait for other processes or act on more than their arguments."""

_UNCHECKED = ("_ctc_loss_backward",)
"""Operations that write where their whole numbers say, without looking: with made-up numbers that
do not fit together, they destroy the process. Lengths of targets against `log_alpha`, here."""


@final
@dataclass(frozen=True, slots=True)
class Call:
    """An operation with one or several sets of real inputs.

    Attributes:
        is_fresh: Whether its output is new memory in every run; see Note [Stopwatch], rule 4.
        not_returned: Places among its outputs where a step gets nothing.
    """

    name: str
    operation: Callable[..., Any]
    sets: tuple[tuple[list[Any], dict[str, Any]], ...]
    device: torch.device
    is_fresh: bool = False
    not_returned: tuple[int, ...] = ()

    @classmethod
    def of(cls, signature: str, cost: OperationCost, device: torch.device) -> Call:
        """Make the inputs; see Note [Stopwatch], rule 2.

        Raises:
            UsageError: The operation is unknown here, or must not be run on its own.
        """
        operation, args, kwargs = arguments_of(signature, device)
        if str(operation).partition(".")[0] in _NOT_RUN:
            raise UsageError(f"{operation} does more than compute, so it is not run on its own")
        if cost.name in _UNCHECKED:
            raise UsageError(f"{operation} is not safe to run with numbers that were made up")
        if any(part in cost.name for part in _WITH_DOMAIN):
            _make_positive([args, kwargs])
        num_sets = max(1, min(_MOST_SETS, _SETS_BYTES // max(1, cost.held_bytes)))
        copies = [(_copied(args), _copied(kwargs)) for _ in range(num_sets - 1)]
        is_fresh = cost.largest_output_bytes >= _FRESH_BYTES
        sets = ((args, kwargs), *copies)
        return cls(cost.name, operation, sets, device, is_fresh, cost.not_returned)

    def run(self, number: int = 0) -> Any:
        """What the operation returns for one of the sets, taken in turn."""
        args, kwargs = self.sets[number % len(self.sets)]
        return self.operation(*args, **kwargs)


@contextlib.contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Inside, operations run plainly; outside, nothing has changed. Note [Stopwatch], rule 6."""
    cards = [device] if device.type == "cuda" else []
    with (
        warnings.catch_warnings(),
        real_tensors(),
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),
        torch.random.fork_rng(cards),
    ):
        warnings.simplefilter("ignore")
        yield


def time_round(call: Call) -> float:
    """Milliseconds of one run: the median of one round; see Note [Stopwatch]."""
    clock = _card_ms if call.device.type == "cuda" else _host_ms
    held: list[Any] = [None] * len(call.sets)
    warm_up = [clock(call, 0, held)]
    while len(warm_up) < len(held) and sum(warm_up) < _ROUND_MS:
        warm_up.append(clock(call, len(warm_up), held))
    samples: list[float] = []
    while not _is_enough(samples, warm_up[0]):
        samples.append(clock(call, len(samples), held))
    return statistics.median(samples)


def _is_enough(samples: list[float], first_ms: float) -> bool:
    if first_ms >= LONG_MS and samples:
        return True
    return len(samples) >= _LEAST_RUNS and (sum(samples) >= _ROUND_MS or len(samples) >= _MOST_RUNS)


def measure_workspace(call: Call) -> int:
    """Bytes that one run allocates at its highest, beyond what it leaves behind.

    Zero while somebody else's profiler is on.
    Cost: a second for the first in a process, then about 4 ms.
    """
    if profiler_is_running():
        return 0
    profiler = torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with _nothing_collected():
        start_profiler(profiler)
        try:
            output = call.run()
            _wait_for(call.device)
        finally:
            stop_profiler(profiler)
    held_bytes = highest_bytes = 0
    for event in read_events(profiler, call.device).allocations:
        held_bytes += event.delta_bytes
        highest_bytes = max(highest_bytes, held_bytes)
    for each in tensors_in([output[place] for place in call.not_returned]):
        held_bytes -= each.untyped_storage().nbytes()
    del output
    return max(0, highest_bytes - held_bytes)


@contextlib.contextmanager
def _nothing_collected() -> Iterator[None]:
    """Garbage that is freed while an operation runs would look like scratch memory of its own."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def _host_ms(call: Call, number: int, held: list[Any]) -> float:
    place = number % len(held)
    if call.is_fresh:
        held[place] = None
        release_free_heap()
    waited_ns = _waited_ns()
    start_ns = time.perf_counter_ns()
    held[place] = None  # Note [Stopwatch], rule 3
    held[place] = call.run(number)
    duration_ns = time.perf_counter_ns() - start_ns
    waited_ns = min(_waited_ns() - waited_ns, duration_ns)
    return (duration_ns - waited_ns) / 1e6


def _waited_ns() -> int:
    """How long this thread has waited for a processor since it began; see Note [Stopwatch], rule 5.

    Zero where the system does not tell. Cost: some 10 µs.
    """
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _card_ms(call: Call, number: int, held: list[Any]) -> float:
    held[number % len(held)] = None
    start, end = (torch.Event(call.device, enable_timing=True) for _ in range(2))
    with torch.cuda.device(call.device):
        start.record()
        held[number % len(held)] = call.run(number)
        end.record()
        end.synchronize()
    return float(start.elapsed_time(end))


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _make_positive(value: Any) -> None:
    for tensor in tensors_in(value):
        if tensor.is_floating_point() and tensor.itemsize > 1:
            whole = tensor.untyped_storage().nbytes() // tensor.itemsize
            tensor.as_strided((whole,), (1,), 0).abs_()


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        whole = value.untyped_storage().nbytes() // value.itemsize
        flat = value.as_strided((whole,), (1,), 0).clone()
        return flat.as_strided(value.shape, value.stride(), value.storage_offset())
    if isinstance(value, list):
        return [_copied(item) for item in value]
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return value
