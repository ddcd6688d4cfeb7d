"""One contestant in a process of its own: prepares, and then times steps when it is told to.

In go commands, a line of JSON each, on stdin; out goes a line of JSON for each, on what was stdout:
`prepare` (build the case, let the peer change it, warm up, measure the peak), `time` (so many
steps), `finish` (what backward is left, and what the peer reports). `reference` is for a process
that does nothing else: it leaves what the others are compared with. See Note [Same for all].
"""

# Note [Same for all]
# 1. The case is built from the same seed, with the same number of threads, and has the same number
#    of warm-up steps after the peer has changed it.
# 2. The first of these begins from the same weights, batch and random numbers everywhere. Its loss
#    and gradients are what is compared with plain's, which a process that takes no turns has left
#    in a file: a contestant that wrote it would have another heap than the others, and was up to
#    4 % slower for it in every round.
# 3. Preparation is what the change and the warm-up took beyond that many ordinary steps: compiling,
#    planning, measuring of one's own.
# 4. The stash is measured last: recording it may make compiled code be compiled again.
# 5. Memory that is freed stays with the process (legroom.keep_freed_memory): otherwise processes
#    that run the same code differ by up to a tenth, by the pages that they touch anew. Measuring
#    the peak returns what is free, to see how far the process grows, so a step follows it. The
#    one exception is the row of plain that shows what glibc does as it comes.

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import IO, Any

import torch

import legroom
from benchmarks import cases, peers
from benchmarks.cases import Case
from benchmarks.peers import Entrant, NotForCaseError
from benchmarks.processes import one_line
from legroom.errors import InfeasibleBudgetError
from legroom.meter import PeakGauge

WARMUP_STEPS = 5
"""legroom measures the first two steps itself, and may plan anew after them."""
_SEED = 7

State = dict[str, Any]


def reference(state: State, command: dict[str, Any]) -> dict[str, Any]:
    """Leave loss and gradients of plain's first step in the file; see rule 2."""
    del state
    torch.set_num_threads(command["threads"])
    case = cases.build(command["case"], command["size"])
    torch.manual_seed(_SEED)
    unfinished = command["plain_file"] + ".unfinished"
    torch.save(_results(case, case.step()), unfinished)
    os.replace(unfinished, command["plain_file"])
    return {"status": "ready"}


def prepare(state: State, command: dict[str, Any]) -> dict[str, Any]:
    """Build, change, warm up, compare, and measure the peak of a step."""
    torch.set_num_threads(command["threads"])
    freed = legroom.keep_freed_memory() if command["keeps_freed"] else "as it comes"
    case = cases.build(command["case"], command["size"])
    started = time.perf_counter()
    try:
        torch.manual_seed(_SEED)
        entrant = peers.get(command["peer"])().apply(case, command["setting"])
        torch.manual_seed(_SEED)
        warmup_ms, compared = _warm_up(entrant.case, command)
    except NotForCaseError as error:
        return {"status": "not for this case", "why": str(error)}
    except InfeasibleBudgetError as error:
        return {"status": "below floor", "floor_bytes": error.floor_bytes}
    state["entrant"], state["step_ms"] = entrant, []
    state["prepare_ms"] = 1000 * (time.perf_counter() - started)
    gc.collect()
    gauge = PeakGauge(torch.device("cpu"))
    gauge.start()
    entrant.case.step()
    reading = gauge.stop()
    if reading is None:
        return {"status": "failed", "why": "a profiler was running"}
    entrant.case.step()  # touches again what measuring had returned
    return {
        "status": "ready",
        "freed": freed,
        "peak_bytes": reading.peak_bytes,
        "opening_bytes": reading.opening_bytes,
        "resident_bytes": reading.resident_bytes,
        "warmup_ms": warmup_ms,
        **compared,
    }


def _warm_up(case: Case, command: dict[str, Any]) -> tuple[list[float], dict[str, Any]]:
    times_ms: list[float] = []
    compared: dict[str, Any] = {}
    for number in range(WARMUP_STEPS):
        started = time.perf_counter()
        loss = case.step()
        times_ms.append(1000 * (time.perf_counter() - started))
        if number == 0:
            compared = _compare(case, loss, command["plain_file"])
    return times_ms, compared


def _compare(case: Case, loss: torch.Tensor, file: str) -> dict[str, Any]:
    """Loss and gradients beside plain's in the file; nothing if plain could not run."""
    if not os.path.exists(file):
        return {"num_compared": 0}
    return difference(_results(case, loss), torch.load(file))


def _results(case: Case, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    found = {
        f"{number}.{name}": param.grad.detach().clone()
        for number, model in enumerate(case.models)
        for name, param in model.named_parameters()
        if param.grad is not None
    }
    return {**found, "loss": loss.detach().clone()}


def difference(mine: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> dict[str, Any]:
    """How far loss and gradients are from plain's, and how many tensors have other bits."""
    shared = [name for name in plain if name in mine]
    lost = [name for name in plain if name not in mine]
    gradients = [name for name in shared if name != "loss"]
    squared = sum((mine[name] - plain[name]).double().square().sum().item() for name in gradients)
    norm = sum(plain[name].double().square().sum().item() for name in gradients)
    most = max(((mine[name] - plain[name]).abs().max().item() for name in gradients), default=0.0)
    loss = plain["loss"].item()
    return {
        "num_compared": len(plain),
        "num_different": len(lost)
        + sum(not torch.equal(mine[name], plain[name]) for name in shared),
        "num_missing": len(lost),
        "loss_off": abs(mine["loss"].item() - loss) / max(abs(loss), 1e-12),
        "gradient_off": (squared / norm) ** 0.5 if norm else 0.0,
        "gradient_off_most": most,
    }


def time_steps(state: State, command: dict[str, Any]) -> dict[str, Any]:
    """So many steps: milliseconds by the wall's clock, and of processor time."""
    case: Case = state["entrant"].case
    wall_ms, cpu_ms = [], []
    for _ in range(command["steps"]):
        wall, cpu = time.perf_counter(), time.process_time()
        case.step()
        cpu_ms.append(1000 * (time.process_time() - cpu))
        wall_ms.append(1000 * (time.perf_counter() - wall))
    state["step_ms"] += wall_ms
    return {"wall_ms": wall_ms, "cpu_ms": cpu_ms}


def finish(state: State, command: dict[str, Any]) -> dict[str, Any]:
    """What took time before, what is left for backward, and the peer's own report."""
    del command
    entrant: Entrant = state["entrant"]
    ordinary_ms = WARMUP_STEPS * statistics.median(state["step_ms"]) if state["step_ms"] else 0.0
    answer: dict[str, Any] = {
        "preparation_s": max(0.0, state["prepare_ms"] - ordinary_ms) / 1000,
        "report": entrant.report(),
    }
    try:
        profile = legroom.profile(entrant.case.step, warmup=0)
        answer["stash_bytes"] = profile.largest_stash_bytes
    except Exception as error:  # the rest of the row counts without it
        answer |= {"stash_bytes": None, "no_stash": one_line(error)}
    return answer


COMMANDS: dict[str, Callable[[State, dict[str, Any]], dict[str, Any]]] = {
    "reference": reference,
    "prepare": prepare,
    "time": time_steps,
    "finish": finish,
}


def serve(commands: IO[str], answers: IO[str]) -> None:
    """Carry out commands until there are no more; what goes wrong is an answer too."""
    state: State = {}
    for line in commands:
        command = json.loads(line)
        try:
            answer = COMMANDS[command["do"]](state, command)
        except MemoryError as error:
            answer = {"status": "out of memory", "why": one_line(error)}
        except Exception as error:  # a row, not the end of the contest
            is_memory = "not enough memory" in str(error) or "DefaultCPUAllocator" in str(error)
            answer = {"status": "out of memory" if is_memory else "failed", "why": one_line(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Serve the parent; what anybody prints goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
