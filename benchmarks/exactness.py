"""Is training the same bit for bit, and within its budget, when it is fitted?

In go a function that builds a training and one that fits it; out comes a row for each level of the
budget: how many tensors differ from plain training, what was predicted and what was measured.
"""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import legroom
from benchmarks.cases import Case
from benchmarks.processes import one_line
from legroom.errors import InfeasibleBudgetError
from legroom.meter import PeakGauge

LEVELS = ("75%", "50%", "lowest")
NUM_STEPS = 3


def compare_levels(
    build: Callable[[], Case],
    fit: Callable[..., legroom.Fitted],
    levels: tuple[str, ...] = LEVELS,
) -> list[dict[str, Any]]:
    """Three steps plain and fitted at each level, compared bit for bit.

    Args:
        build: Makes the same training each time: weights, batches and random numbers to come.
        fit: Fits a case, given the level in the words of `legroom.fit`.
    """
    plain = build()
    expected = [_step(plain) for _ in range(NUM_STEPS)]
    del plain
    return [{"level": level, **_row(build, fit, level, expected)} for level in levels]


def _row(
    build: Callable[[], Case],
    fit: Callable[..., legroom.Fitted],
    level: str,
    expected: list[tuple[float, dict[str, str]]],
) -> dict[str, Any]:
    gc.collect()  # what earlier levels left behind would count
    case = build()
    started = time.perf_counter()
    options = {"budget": level} if level == "lowest" else {"activations": level}
    try:
        fitted = fit(case, **options)
        seen = [_step(case) for _ in range(NUM_STEPS - 1)]
        to_second_step_s = time.perf_counter() - started
        seen.append(_step(case))
    except InfeasibleBudgetError as error:
        return {"status": "below floor", "floor_bytes": error.floor_bytes}
    except Exception as error:  # a row, not the end of the benchmark
        return {"status": "failed", "error": one_line(error)}
    report = fitted.report()
    peak_bytes = measure_peak(case.step)
    fitted.undo()
    different = [
        f"step {number}: {key}"
        for number, ((_, mine), (_, theirs)) in enumerate(zip(seen, expected, strict=True), start=1)
        for key in {**theirs, **mine}
        if mine.get(key) != theirs.get(key)
    ]
    return {
        "status": "ran",
        "num_compared": sum(len(each) for _, each in expected),
        "num_different": len(different),
        "first_different": different[:1],
        "loss_off": max(
            abs(mine - theirs) / max(abs(theirs), 1e-12)
            for (mine, _), (theirs, _) in zip(seen, expected, strict=True)
        ),
        "to_second_step_s": to_second_step_s,
        **report.to_dict(),
        "measured_peak_bytes": peak_bytes,  # of a whole step, and not by the fitted model itself
    }


def measure_peak(step: Callable[[], object]) -> int:
    """The allocator's peak over one step."""
    gauge = PeakGauge(torch.device("cpu"))
    gauge.start()
    step()
    reading = gauge.stop()
    assert reading is not None, "a profiler was running"
    return reading.peak_bytes


def _step(case: Case) -> tuple[float, dict[str, str]]:
    loss = case.step()
    return loss.item(), digests(case, loss)


def digests(case: Case, loss: torch.Tensor) -> dict[str, str]:
    """A digest of everything that training changes, by name."""
    numpys: Any = np.random.get_state()
    found = {
        "loss": _digest(loss),
        "random state": _digest(torch.get_rng_state()),
        "random state of NumPy": hashlib.blake2b(numpys[1].tobytes(), digest_size=12).hexdigest(),
    }
    for number, model in enumerate(case.models):
        for name, param in model.named_parameters():
            found[f"{number}.{name}"] = _digest(param)
            found[f"{number}.{name}.grad"] = _digest(param.grad)
        for name, buffer in model.named_buffers():
            found[f"{number}.{name}"] = _digest(buffer)
    for number, optimizer in enumerate(case.optimizers):
        for place, state in enumerate(optimizer.state.values()):
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    found[f"optimizer {number}.{place}.{key}"] = _digest(value)
    return found


def _digest(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "none"
    flat = tensor.detach().contiguous().view(-1)
    raw = flat.view(torch.uint8).numpy() if flat.numel() else b""
    return hashlib.blake2b(raw, digest_size=12).hexdigest()
