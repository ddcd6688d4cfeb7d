"""How large a batch, how deep a model, how long a sequence fits into a fixed budget?

In go a case's name and a part: what is to grow and how it is fitted (`batch bitwise`, `batch disk`,
`batch lossy`, the same for `depth` and `length`); out comes one JSON object on stdout. The budget
is the plain step's measured peak in size `small`, so plain training reaches that size and no more,
which is tried too. For the others the largest value is searched by planning alone and then
confirmed by training: its measured peak must be within the budget.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks import cases
from benchmarks.processes import answer_of, print_answer

QUESTIONS = {
    "batch": {"gpt2": "batch", "bert": "batch", "vit": "batch", "resnet50": "batch"},
    "depth": {"gpt2": "num_layers", "resnet50": "num_blocks"},
    "length": {"gpt2": "length", "lstm_nmt": "length"},
}
"""What grows: by case, the field of its size. Fixed before anything was measured."""
CONTESTANTS: dict[str, dict[str, Any]] = {
    "bitwise": {},
    "disk": {"disk": True},
    "lossy": {"exactness": "lossy"},
}
"""How each is fitted, in the words of `legroom.fit`: the disk has the same bits."""
TOLERANCE = 1 / 8
"""The search ends when a value fits and one that is larger by this part of it does not."""
MOST_TRIES = 8
MOST_RUNS = 3
PLAN_LIMIT_S, RUN_LIMIT_S = 400.0, 700.0
"""For one try; what takes longer ends the search upwards."""
QUESTION_LIMIT_S = 1500.0
"""No try begins later than that."""
ROOM_BYTES = 256 * 1024
"""Which fitting keeps free."""


# -- the search ----------------------------------------------------------------------------------


@dataclass
class Search:
    """The largest value that fits, between one that does and one that does not.

    Values double until there are two floors, or one does not fit; then a line through the nearest
    two says where to try next, kept off the bracket's ends. Where a try gives no answer the search
    goes no higher, and its result is `is_open`: at least that much.

    Attributes:
        best: The largest value known to fit; at first the one that fits plain.
        worst: The smallest known not to; None: none is.
        floors: Lowest peaks that plans reach, by value.
        state_bytes: What no plan lowers, if it is known; the line's start while there is one floor.
    """

    best: int
    budget_bytes: int
    worst: int | None = None
    is_open: bool = False
    state_bytes: int | None = None
    floors: dict[int, int] = field(default_factory=dict)

    def tell(self, value: int, answer: dict[str, Any]) -> None:
        """What trying a value gave."""
        if "floor_bytes" not in answer:
            self.worst, self.is_open = value, True
            return
        self.floors[value] = answer["floor_bytes"]
        if self.state_bytes is None:
            self.state_bytes = answer.get("state_bytes")
        if answer["floor_bytes"] <= self.budget_bytes:
            self.best = max(self.best, value)
        else:
            self.worst = value if self.worst is None else min(self.worst, value)
            self.is_open = False

    def next_value(self) -> int | None:
        """What to try next; None where the bracket is narrow enough."""
        if self.worst is not None and self.worst <= _above(self.best):
            return None
        forecast = self._forecast()
        if self.worst is None:
            highest = 4 * self.best
            guess = 2 * self.best if forecast is None else forecast
            return min(highest, max(guess, _above(self.best)))
        guess = (self.best + self.worst) // 2 if forecast is None else forecast
        lowest, highest = _above(self.best), _below(self.worst)
        if highest <= self.best:
            highest = self.worst - 1
        return max(self.best + 1, min(highest, max(guess, min(lowest, highest))))

    def _forecast(self) -> int | None:
        """Where the line through the floors nearest to the budget meets it."""
        points = sorted(self.floors.items(), key=lambda it: abs(it[1] - self.budget_bytes))[:2]
        if len(points) == 1 and self.state_bytes is not None:
            points.append((0, self.state_bytes))
        if len(points) < 2:
            return None
        (first, low), (second, high) = sorted(points)
        if high <= low:
            return None
        return int(first + (self.budget_bytes - low) * (second - first) / (high - low))


def _above(value: int) -> int:
    return value + max(1, int(value * TOLERANCE))


def _below(value: int) -> int:
    """The largest value that `value` is within the tolerance of."""
    below = int(value / (1 + TOLERANCE))
    while below < value - 1 and _above(below) < value:
        below += 1
    return below


Try = Callable[[int], dict[str, Any]]


def search_and_confirm(
    base: int, budget_bytes: int, *, plan: Try, run: Try, may_go_on: Callable[[], bool]
) -> dict[str, Any]:
    """The largest value found by planning that training confirms, with all that was tried.

    Args:
        base: A value that fits as it is.
        plan: Gives `floor_bytes` and `state_bytes` for a value, or an `error`.
        run: Gives `peak_bytes` and times, or why there are none.
        may_go_on: Whether there is time for one more try.
    """
    search = Search(base, budget_bytes - ROOM_BYTES)
    planned: list[dict[str, Any]] = []
    while len(planned) < MOST_TRIES and may_go_on():
        value = search.next_value()
        if value is None:
            break
        answer = plan(value)
        planned.append({"value": value, **answer})
        search.tell(value, answer)
    bracketed = search.next_value() is None and not search.is_open
    runs: list[dict[str, Any]] = []
    value = search.best
    while len(runs) < MOST_RUNS and value >= base and may_go_on():
        answer = run(value)
        runs.append({"value": value, **answer})
        if answer.get("peak_bytes", budget_bytes + 1) <= budget_bytes:
            break
        value = min(value - 1, int(value * (1 - TOLERANCE / 2)))
    confirmed = next((each for each in runs if _fits(each, budget_bytes)), None)
    return {
        "planned_value": search.best,
        "above": search.worst,
        "is_bracketed": bracketed,
        "value": confirmed["value"] if confirmed else None,
        "planned": planned,
        "runs": runs,
    }


def _fits(answer: dict[str, Any], budget_bytes: int) -> bool:
    return "peak_bytes" in answer and answer["peak_bytes"] <= budget_bytes


# -- a question ----------------------------------------------------------------------------------


def measure_question(what: str, contestant: str, name: str) -> dict[str, Any]:
    """The largest value of a contestant; nothing where this is not asked of the case."""
    field_name = QUESTIONS[what].get(name)
    if field_name is None:
        return {"not_asked": True}
    began = time.monotonic()

    def may_go_on() -> bool:
        return time.monotonic() - began < QUESTION_LIMIT_S

    def attempt(value: int, kind: str, **options: Any) -> dict[str, Any]:
        limit_s = PLAN_LIMIT_S if kind == "plan" else RUN_LIMIT_S
        arguments = [name, json.dumps({field_name: value}), kind]
        answer = answer_of(
            "benchmarks.tries",
            *(arguments if kind == "plain" else [*arguments, json.dumps(options)]),
            limit_s=limit_s,
        )
        told = {key: answer[key] for key in _TOLD if key in answer}
        print(name, what, kind, value, options, told, file=sys.stderr, flush=True)
        return answer

    base: int = getattr(cases.load(name).SIZES["small"], field_name)
    plain = attempt(base, "plain")
    if "error" in plain:
        return plain
    budget_bytes, options = plain["peak_bytes"], CONTESTANTS[contestant]
    return {
        "field": field_name,
        "base": base,
        "plain": plain,
        "plain_above": {"value": _above(base), **attempt(_above(base), "plain")},
        **search_and_confirm(
            base,
            budget_bytes,
            plan=functools.partial(attempt, kind="plan", **options),
            run=functools.partial(attempt, kind="run", budget=budget_bytes, **options),
            may_go_on=may_go_on,
        ),
    }


_TOLD = ("error", "floor_bytes", "peak_bytes", "processor_ms")

CASE_PARTS: dict[str, Callable[[str], dict[str, Any]]] = {
    f"{what} {contestant}": functools.partial(measure_question, what, contestant)
    for what in QUESTIONS
    for contestant in CONTESTANTS
}


if __name__ == "__main__":
    print_answer(CASE_PARTS, {})
