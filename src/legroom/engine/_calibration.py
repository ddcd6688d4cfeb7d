"""What the eager executor takes beyond plain PyTorch on this machine, by running it.

In goes nothing but the machine; out comes an `ExecutorTime`, from the cache where it is known. See
Note [Calibration].
"""

# Note [Calibration]
# 1. A chain of tiny linear layers runs as plain PyTorch and as a planned call that keeps
#    everything, at two lengths. The line through the two differences has what a run takes where it
#    meets zero operations, and what an operation takes as its slope. Parameters are part of that: a
#    call looks at each of them, and a gradient is delivered to each.
# 2. The two take turns, so that a busy moment meets both; medians of processor time count.
# 3. It is kept with the times of operations, in the same file: it depends on the same.
# 4. A process that has not planned yet loads TorchDynamo for it, which planning needs anyway.
# 5. Nothing that the program can notice changes, and nothing stays compiled.

from __future__ import annotations

import logging
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from legroom.capture import real_tensors, without_traces
from legroom.engine._call_key import call_key
from legroom.engine.graph import Eager, PlannedCall, guard
from legroom.meter import OperationTime, TimeCache, surroundings_of
from legroom.plan import ExecutorTime, calibrate_by

_log = logging.getLogger("legroom")
_RUN, _OPERATION = "legroom's executor: a run", "legroom's executor: an operation"
SIGNATURES = (_RUN, _OPERATION)
"""What the two are called in the cache."""

_SHORT, _LONG = 2, 20
_WIDTH = 8
_PER_LAYER = 6
"""Operations of a layer: a product and a tanh; the gradients of tanh, bias, weight and input."""
_WARM_UP, _MOST_ROUNDS = 5, 120
_SECONDS = 0.4
"""What running a chain of one length takes at most, beside compiling it."""


@calibrate_by
def measure_executor() -> ExecutorTime:
    """What the executor takes; see Note [Calibration].

    Cost: one to two seconds for the first time on a machine, a millisecond afterwards. Where it
    fails, it is logged and nothing is counted.
    """
    cache = TimeCache(surroundings_of(torch.device("cpu")))
    known = cache.read()
    if not known.keys() >= {*SIGNATURES}:
        try:
            measured = _measure()
        except Exception as error:  # no plan fails because of this
            _log.warning("the executor's own time is not known: %s", error)
            return ExecutorTime()
        known = {
            _RUN: OperationTime(measured.run_ms, is_measured=True),
            _OPERATION: OperationTime(measured.operation_ms, is_measured=True),
        }
        for signature, each in known.items():
            cache.add(signature, each)
    return ExecutorTime(known[_RUN].ms, known[_OPERATION].ms)


class _Chain(nn.Module):
    """Layers whose operations take no time of their own."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_layer() for _ in range(num_layers))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            value = torch.tanh(layer(value))
        return value


def _layer() -> nn.Linear:
    """Without random numbers, which are the program's."""
    layer = nn.Linear(_WIDTH, _WIDTH, device="meta", dtype=torch.float32)
    layer.weight = nn.Parameter(_filled(_WIDTH, _WIDTH))
    layer.bias = nn.Parameter(_filled(_WIDTH))
    return layer


def _filled(*shape: int) -> torch.Tensor:
    return torch.full(shape, 0.1, dtype=torch.float32, device="cpu")


def _measure() -> ExecutorTime:
    """The line through two differences; see Note [Calibration], rule 1."""
    with (
        warnings.catch_warnings(),
        real_tensors(),
        without_traces(forgets=False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
    ):
        warnings.simplefilter("ignore")
        short_ms, long_ms = _difference_ms(_SHORT), _difference_ms(_LONG)
    operation_ms = max(0.0, (long_ms - short_ms) / (_PER_LAYER * (_LONG - _SHORT)))
    return ExecutorTime(max(0.0, short_ms - _PER_LAYER * _SHORT * operation_ms), operation_ms)


def _difference_ms(num_layers: int) -> float:
    """What a step of a chain takes longer as a planned call."""
    chain = _Chain(num_layers)
    value, gradient = _filled(_WIDTH, _WIDTH), _filled(_WIDTH, _WIDTH)
    planned = PlannedCall(
        chain._call_impl, (), {}, executor=Eager(), exactness="bitwise", keeps_unknown=True
    )

    def call_planned(value: torch.Tensor) -> Any:
        call_key(chain, (value,), {})
        return planned(value)

    def step_ms(call: Callable[[torch.Tensor], Any]) -> float:
        started = time.thread_time_ns()
        call(value).backward(gradient)
        spent = time.thread_time_ns() - started
        for parameter in chain.parameters():
            parameter.grad = None
        return spent / 1e6

    def plain_ms() -> float:
        guard.has_pieces = False  # nobody looks at the graph of a plain step
        return step_ms(chain)

    def planned_ms() -> float:
        guard.acquire()
        try:
            return step_ms(call_planned)
        finally:
            guard.release()

    had_pieces = guard.has_pieces
    try:
        for _ in range(_WARM_UP):
            plain_ms()
            planned_ms()
        ends = time.monotonic() + _SECONDS
        plain: list[float] = []
        ours: list[float] = []
        while len(ours) < _MOST_ROUNDS and (time.monotonic() < ends or not ours):
            plain.append(plain_ms())
            ours.append(planned_ms())
    finally:
        planned.forget()
        guard.has_pieces = had_pieces
    return statistics.median(ours) - statistics.median(plain)
