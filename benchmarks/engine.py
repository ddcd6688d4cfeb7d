"""Is fitted training the same, does it keep the budget, and is it faster than what others offer?

In go a case's name and a part (`exact`, `compiled`, `speed`, `stash`, `lossy`), or a part alone
that is measured once (`architectures`, `torch_budget`, `limited`); out comes one JSON object on
stdout. `benchmarks.run` puts the answers side by side.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import legroom
from benchmarks import cases
from benchmarks.architectures import ARCHITECTURES
from benchmarks.cases import Case
from benchmarks.exactness import compare_levels, measure_peak
from benchmarks.fitting import fit_case, fit_near
from benchmarks.limited import measure_limited_run
from benchmarks.peers import checkpoint_blocks, eager_partitions
from benchmarks.processes import answer_of, one_line, print_answer
from benchmarks.reference import Reference
from legroom.errors import LegroomError

WARMUP_STEPS = 2
MEASURED_STEPS = 3
"""So many steps under a plan are measured, and slower for it."""
ROUNDS = 11
FACTORS = {
    "gpt2": (2.5, 3.5), "vit": (1.5, 2.0), "resnet50": (1.5, 1.85), "lstm_nmt": (2.0, 3.2),
}  # fmt: skip
"""How many times less than plain is to be kept for backward."""
STASH_EXACTNESS = {"lstm_nmt": "rounding"}
"""Where it is not `bitwise`: an LSTM's bits are those of a kernel that keeps everything."""
_OTHER_FACTORS = (1.5, 2.0)
_TWO_BITS = {"preset": "actnn", "ways": ("bits", "offsets", "integer2")}
LOSSY = {
    "gpt2": {
        "blocks": {"preset": "per-block"},
        "blocks, eager": {"preset": "per-block", "executor": "eager"},
        "2 bits": _TWO_BITS,
        "2 bits, eager": {**_TWO_BITS, "executor": "eager"},
    },
    "resnet50": {"2 bits": _TWO_BITS, "2 bits, eager": {**_TWO_BITS, "executor": "eager"}},
}
"""What keeps far less where fewer bits are allowed; Inductor's kernels, and PyTorch's own."""
LOSSY_FACTORS = {"gpt2": 25.0, "resnet50": 12.0}
"""How many times less than plain the planner is to keep there."""
_ROOMY = "90%"
"""Of the activations: there the recipe is measured and not the room for it."""
_ROOM_BYTES = 64 * 1024
"""For what is kept beside what is planned."""
TORCH_BUDGETS = (0.1, 0.15, 0.2, 0.3, 0.5)
_SEED = 7


# -- the same training within the budget ---------------------------------------------------------


def measure_exact(name: str) -> dict[str, Any]:
    """Three steps plain and fitted at each level, compared bit for bit."""
    return {"rows": _compare_case(name, fit_case)}


def measure_compiled(name: str) -> dict[str, Any]:
    """The same with Inductor's kernels, which round otherwise: the loss is compared."""
    fit = functools.partial(fit_case, executor="inductor", exactness="rounding")
    return {"rows": _compare_case(name, fit)}


def _compare_case(name: str, fit: Callable[..., legroom.Fitted]) -> list[dict[str, Any]]:
    def build() -> Case:
        case = cases.build(name)
        torch.manual_seed(_SEED)
        return case

    return compare_levels(build, fit)


# -- time against plain and against checkpointing by hand ----------------------------------------


def measure_speed(name: str) -> dict[str, Any]:
    """Step times, taking turns: plain, checkpointed by hand, and fitted at three budgets."""
    torch.set_num_threads(1)
    names = ["plain", "checkpoint", "fitted", "free", "whole"]
    if not cases.build(name).blocks:
        names = ["plain", "free", "whole"]
    runs: dict[str, Case] = {}
    for contestant in names:
        case = runs[contestant] = cases.build(name)
        if contestant == "checkpoint":
            checkpoint_blocks(case)
        for _ in range(WARMUP_STEPS):
            case.step()
    measured = [each for each in ("plain", "checkpoint") if each in runs]
    peaks = {each: measure_peak(runs[each].step) for each in measured}
    handles: dict[str, legroom.Fitted] = {}
    budgets = {"fitted": peaks.get("checkpoint"), "free": "free", "whole": "100%"}
    for contestant in names:
        if contestant in budgets:
            handles[contestant] = fit_near(runs[contestant], budgets[contestant])
        for _ in range(MEASURED_STEPS):
            runs[contestant].step()
    times = interleaved({each: case.step for each, case in runs.items()})
    reports = {each: handle.report().to_dict() for each, handle in handles.items()}
    stash = {
        each: legroom.profile(runs[each].step, warmup=0).largest_stash_bytes
        for each in ("plain", "free", "checkpoint")
        if each in runs
    }
    return {"times_ms": times, "peaks": peaks, "reports": reports, "stash": stash}


def interleaved(
    steps: dict[str, Callable[[], object]],
    *,
    clock: Callable[[], float] = time.process_time,
    num_rounds: int = ROUNDS,
) -> dict[str, list[float]]:
    """Milliseconds of each step, round after round, taking turns.

    Args:
        clock: In seconds. Usually the time that the process had the processor: what other programs
            on the machine take is not the step's.
    """
    times: dict[str, list[float]] = {each: [] for each in steps}
    for number in range(num_rounds):
        order = list(steps)
        for each in order[number % len(order) :] + order[: number % len(order)]:
            started = clock()
            steps[each]()
            times[each].append(1000 * (clock() - started))
    return times


# -- how much less can be kept for backward, and what that costs ---------------------------------


def measure_stash(name: str) -> dict[str, Any]:
    """Step times, taking turns: plain, and fitted so that so many times less is kept."""
    exactness = STASH_EXACTNESS.get(name, "bitwise")
    factors = FACTORS.get(name, _OTHER_FACTORS)

    def contestants(stash_bytes: int) -> dict[str, dict[str, Any]]:
        return {str(each): _keeping(stash_bytes, each) for each in factors}

    return _measure_less(name, contestants, exactness=exactness)


def measure_lossy(name: str) -> dict[str, Any]:
    """The same with fewer bits, compiled; how far gradients are off is in the reports."""
    recipes: dict[str, dict[str, Any]] = LOSSY.get(name, {"2 bits": _TWO_BITS})

    factors = (LOSSY_FACTORS.get(name, 10.0),)

    def contestants(stash_bytes: int) -> dict[str, dict[str, Any]]:
        planned = {f"planned for {each}, eager": _keeping(stash_bytes, each) for each in factors}
        planned |= {
            f"planned for {each}": {**_keeping(stash_bytes, each), "executor": "inductor"}
            for each in factors
        }
        roomy = {"activations": _ROOMY, "executor": "inductor"}
        return planned | {key: {**roomy, **recipe} for key, recipe in recipes.items()}

    return _measure_less(name, contestants, exactness="lossy")


def _measure_less(
    name: str,
    contestants: Callable[[int], dict[str, dict[str, Any]]],
    *,
    exactness: str,
) -> dict[str, Any]:
    torch.set_num_threads(1)
    plain = cases.build(name)
    for _ in range(WARMUP_STEPS):
        plain.step()
    stash = {"plain": legroom.profile(plain.step, warmup=0).largest_stash_bytes}
    runs: dict[str, Case] = {"plain": plain}
    handles, failed = {}, {}
    for key, options in contestants(stash["plain"]).items():
        case = cases.build(name)
        for _ in range(WARMUP_STEPS):
            case.step()
        handle = None
        try:
            handle = fit_case(case, exactness=exactness, **options)
            for _ in range(MEASURED_STEPS):
                case.step()
        except LegroomError as error:  # a row, not the end of the benchmark
            if handle is not None:
                handle.undo()
            failed[key] = one_line(error)
            continue
        runs[key], handles[key] = case, handle
    times = interleaved({each: case.step for each, case in runs.items()})
    reports = {each: handle.report().to_dict() for each, handle in handles.items()}
    for key in handles:
        stash[key] = legroom.profile(runs[key].step, warmup=0).largest_stash_bytes
    return {
        "times_ms": times,
        "stash": stash,
        "reports": reports,
        "exactness": exactness,
        "failed": failed,
    }


def _keeping(stash_bytes: int, factor: float) -> dict[str, Any]:
    """Options under which so many times less is kept; the loss itself and the like are little."""
    return {"stash": int(stash_bytes / factor) - _ROOM_BYTES}


# -- against PyTorch's own budget ----------------------------------------------------------------


def measure_torch_budget() -> dict[str, Any]:
    """`activation_memory_budget` at five settings, and legroom at the peak that each reaches."""
    torch.set_num_threads(1)
    return {"rows": [row for subject in ("reference", "gpt2") for row in _budget_rows(subject)]}


def _budget_rows(subject: str) -> Iterator[dict[str, Any]]:
    for setting in TORCH_BUDGETS:
        row: dict[str, Any] = {"subject": subject, "setting": setting}
        try:
            yield {**row, **_budget_row(subject, setting)}
        except Exception as error:  # a row, not the end of the benchmark
            yield {**row, "error": one_line(error)}


def _budget_row(subject: str, setting: float) -> dict[str, Any]:
    import torch._dynamo

    torch._dynamo.reset()
    gc.collect()
    theirs, ours, plain = (_subject(subject) for _ in range(3))
    their_step = _torch_budget_step(theirs, setting)
    for step in (their_step, ours.step, plain.step):
        for _ in range(WARMUP_STEPS):
            step()
    peak_bytes = measure_peak(their_step)
    handle = legroom.fit(ours.model, step=ours.step, budget=peak_bytes)
    for _ in range(MEASURED_STEPS + 1):  # without an optimizer, the next call ends a step
        ours.step()
    times = interleaved({"torch": their_step, "legroom": ours.step, "plain": plain.step})
    report = handle.report()
    return {
        "torch_peak_bytes": peak_bytes,
        "measured_peak_bytes": report.measured_peak_bytes,
        "predicted_peak_bytes": report.predicted_peak_bytes,
        "times_ms": times,
    }


class _Subject:
    """A model with a step that runs the same batch every time."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module], torch.Tensor]) -> None:
        self.model = model
        self.loss = loss

    def step(self) -> None:
        """Forward and backward, into gradients that are made anew."""
        for param in self.model.parameters():
            param.grad = None
        self.loss(self.model).backward()


def _subject(name: str) -> _Subject:
    if name == "reference":
        reference = Reference()

        def loss(model: nn.Module) -> torch.Tensor:
            logits = model(reference.tokens).flatten(0, 1)
            return nn.functional.cross_entropy(logits, reference.labels.flatten())

        return _Subject(reference.model, loss)
    case = cases.build(name)
    torch.manual_seed(_SEED)
    tokens = torch.randint(4096, (8, 256))
    return _Subject(case.model, lambda model: model(input_ids=tokens, labels=tokens).loss)


def _torch_budget_step(subject: _Subject, setting: float) -> Callable[[], None]:
    """The step under torch's own budget, with the same eager kernels and calling convention."""
    import torch._functorch.config

    compiled = torch.compile(subject.model, backend=eager_partitions(), dynamic=False)

    def step() -> None:
        with torch._functorch.config.patch(activation_memory_budget=setting, donated_buffer=False):
            for param in subject.model.parameters():
                param.grad = None
            subject.loss(compiled).backward()

    return step


def measure_architectures() -> dict[str, Any]:
    """What `exact` measures, for architectures that are no cases; each in a process of its own."""
    return {name: answer_of("benchmarks.architectures", name) for name in ARCHITECTURES}


CASE_PARTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "exact": measure_exact,
    "compiled": measure_compiled,
    "speed": measure_speed,
    "stash": measure_stash,
    "lossy": measure_lossy,
}
SINGLE_PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "architectures": measure_architectures,
    "torch_budget": measure_torch_budget,
    "limited": measure_limited_run,
}


if __name__ == "__main__":
    print_answer(CASE_PARTS, SINGLE_PARTS)
