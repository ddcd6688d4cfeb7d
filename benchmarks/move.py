"""What does holding tensors on the disk save, what does it cost, and what does it leave behind?

In go a case's name and a part (`floor`, `resident`, `less`), or a part alone that is
measured once (`soak`, `interruptions`, `faults`); out comes one JSON object on stdout.
`benchmarks.run move` puts the answers side by side.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import legroom
from benchmarks import cases, faults
from benchmarks.architectures import ARCHITECTURES
from benchmarks.cases import Case
from benchmarks.engine import MEASURED_STEPS, WARMUP_STEPS, interleaved
from benchmarks.exactness import compare_levels
from benchmarks.fitting import fit_case
from benchmarks.processes import one_line, print_answer
from legroom import tiers
from legroom.capture import capture_step
from legroom.errors import LegroomError
from legroom.meter import PeakGauge, tier_speed
from legroom.meter._resident import (
    highest_resident_bytes,
    release_free_heap,
    reset_highest,
    resident_bytes,
)
from legroom.plan import PlanOptions, planner_of

ROUNDS = 9
FACTORS = (10.0, 20.0)
"""How many times less than plain is to be kept for backward; 20 is vDNN's."""
NUM_STEPS = 200
NUM_INTERRUPTIONS = 60
FAULTY_MODELS = ("albert", "mistral", "t5")
"""Of transformers, made from their configurations; faults are injected into them."""
_SEED = 11


# -- as little as possible -----------------------------------------------------------------------


def measure_floor(name: str) -> dict[str, Any]:
    """The lowest peak without and with the disk, the latter carried out and compared."""

    def build() -> Case:
        case = cases.build(name)
        torch.manual_seed(_SEED)
        return case

    case = build()
    capture = capture_step(case.step)
    floors = {}
    for key, disk in (("without", False), ("with", True)):
        planner, _ = planner_of(capture, PlanOptions(disk=disk))
        floors[key] = planner.floor_bytes
        state_bytes, plain_bytes = planner.plain.state_bytes, planner.plain.peak_bytes
    del capture, planner, case
    fit = functools.partial(fit_case, disk=True)
    (row,) = compare_levels(build, fit, levels=("lowest",))
    return {
        "floors": floors,
        "state_bytes": state_bytes,
        "plain_peak_bytes": plain_bytes,
        "row": row,
    }


def measure_resident(name: str) -> dict[str, Any]:
    """By how much the process grows in a step at the floor, beside what the allocator counts."""
    legroom.return_freed_memory()
    case = cases.build(name)
    handle = fit_case(case, budget="lowest", disk=True)
    for _ in range(MEASURED_STEPS):
        case.step()
    allocated = PeakGauge(torch.device("cpu"))
    for param in case.model.parameters():
        param.grad = None
    gc.collect()
    release_free_heap()
    before = resident_bytes()
    reset_highest()
    case.step()
    highest = highest_resident_bytes()
    for param in case.model.parameters():
        param.grad = None
    allocated.start()
    case.step()
    reading = allocated.stop()
    assert reading is not None, "a profiler was running"
    handle.undo()
    return {
        "growth_bytes": None if highest is None or before is None else highest - before,
        "allocated_bytes": reading.peak_bytes - reading.opening_bytes,
    }


# -- far less kept for backward ------------------------------------------------------------------


def measure_less(name: str) -> dict[str, Any]:
    """So many times less kept for backward, with the same bits: what of the transfer is hidden."""
    torch.set_num_threads(1)
    plain = _warm(cases.build(name))
    stash_bytes = legroom.profile(plain.step, warmup=0).largest_stash_bytes
    runs, handles, failed = {"plain": plain}, {}, {}
    for factor in FACTORS:
        key = f"{factor:g} times"
        try:
            runs[key], handles[key] = _fitted(name, stash=int(stash_bytes / factor), disk=True)
        except LegroomError as error:  # a row, not the end of the benchmark
            failed[key] = one_line(error)
    stash = {"plain": stash_bytes} | {
        key: legroom.profile(runs[key].step, warmup=0).largest_stash_bytes for key in handles
    }
    return {
        "stash": stash,
        "times_ms": _side_by_side({key: case.step for key, case in runs.items()}),
        "moved_bytes": {
            key: sum(each.plan.moved_bytes.get("disk", ())) for key, each in handles.items()
        },
        "predicted_ms": {key: each.plan.added_ms for key, each in handles.items()},
        "reports": {key: each.report().to_dict() for key, each in handles.items()},
        "speed": dataclasses.asdict(tier_speed(tiers.disk())),
        "failed": failed,
    }


def _warm(case: Case) -> Case:
    for _ in range(WARMUP_STEPS):
        case.step()
    return case


def _fitted(name: str, **options: Any) -> tuple[Case, legroom.Fitted]:
    """A case that is fitted and has been measured."""
    case = _warm(cases.build(name))
    handle = fit_case(case, **options)
    try:
        for _ in range(MEASURED_STEPS + 1):
            case.step()
    except LegroomError:
        handle.undo()
        raise
    return case, handle


def _side_by_side(steps: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Milliseconds of each step by the wall's clock, since a disk works while nothing computes."""
    return interleaved(steps, clock=time.perf_counter, num_rounds=ROUNDS)


# -- nothing is left behind ----------------------------------------------------------------------


def measure_soak() -> dict[str, Any]:
    """Two hundred steps of a GPT-2 that holds most of its stash on the disk."""
    case, handle = _fitted("gpt2", stash="10%", disk=True)
    readings = []
    for step in range(NUM_STEPS):
        case.step()
        if step % 20 == 19:
            readings.append({"step": step + 1, **_held()})
    handle.undo()
    return {"readings": readings}


def _held() -> dict[str, int | None]:
    use = tiers.disk().in_use()
    return {
        "resident_bytes": resident_bytes(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "file_bytes": use.reserved_bytes,
        "slots": use.num_slots,
    }


def measure_interruptions() -> dict[str, Any]:
    """Ctrl-C at random moments of fitted steps; what follows must be as if nothing had been."""
    case, handle = _fitted("gpt2", stash="10%", disk=True)
    draw, counts = random.Random(_SEED), {"interrupted": 0, "ended before": 0, "equal after": 0}
    started = time.perf_counter()
    case.step()
    step_s = time.perf_counter() - started
    expected = _probe(case)
    for _ in range(NUM_INTERRUPTIONS):
        timer = threading.Timer(draw.uniform(0, step_s), os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            _probe(case)
            timer.join()
            counts["ended before"] += 1
        except KeyboardInterrupt:
            counts["interrupted"] += 1
        _let_pass(timer)
        counts["equal after"] += _probe(case) == expected
    handle.undo()
    return {"counts": counts, "left": _held()}


def _let_pass(timer: threading.Timer) -> None:
    """Let a late signal arrive where it does no harm."""
    try:
        timer.join()
        time.sleep(0.01)
    except KeyboardInterrupt:
        pass


def _probe(case: Case) -> float:
    """Loss and gradients of the same batch with the same random numbers, as one number."""
    torch.manual_seed(_SEED)
    case.model.zero_grad()
    loss = case.loss()
    loss.backward()
    total = sum(param.grad.double().sum().item() for param in case.model.parameters())
    return float(loss.item() + total)


def measure_faults() -> dict[str, Any]:
    """Every fault in a small model and in some of transformers', one after the other."""
    torch.set_num_threads(1)
    rows: dict[str, dict[str, Any]] = {}
    models = {"small": (faults.demo_model, faults.demo_loss)}
    models |= {name: _of_transformers(name) for name in FAULTY_MODELS}
    for subject, (build, loss_of) in models.items():
        with faults.training(build(), loss_of) as run:
            for name, fault in faults.FAULTS.items():
                if fault.is_alone and subject != "small":
                    continue
                row = rows.setdefault(name, {"ends": fault.ends.value, "models": {}})
                row["models"][subject] = _fault_row(fault, run)
                _say(f"{subject}: {name}: {row['models'][subject]}")
    return {"rows": rows}


def _fault_row(fault: faults.Fault, run: faults.Training) -> dict[str, Any]:
    try:
        seen = fault.act(run)
    except Exception as error:  # a row, not the end of the benchmark
        return {"failed": one_line(error)}
    return {**dataclasses.asdict(seen), "as_it_should": fault.is_as_it_should(seen)}


def _of_transformers(name: str) -> tuple[Callable[[], nn.Module], faults.LossOf]:
    torch.manual_seed(_SEED)
    model, arguments = ARCHITECTURES[name]()

    def loss_of(model: nn.Module, number: int) -> torch.Tensor:
        loss: torch.Tensor = model(**arguments).loss
        return loss

    return lambda: model, loss_of


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


CASE_PARTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "floor": measure_floor,
    "resident": measure_resident,
    "less": measure_less,
}
SINGLE_PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "soak": measure_soak,
    "interruptions": measure_interruptions,
    "faults": measure_faults,
}


if __name__ == "__main__":
    print_answer(CASE_PARTS, SINGLE_PARTS)
