"""Theme `growth`: how legroom's own time and memory grow with the model.

In goes what `benchmarks.growth` measured, by number of layers; out come its tables, the exponents
between sizes that follow each other, and what they say.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from benchmarks import growth
from benchmarks.themes._tables import mib, table
from benchmarks.themes._theme import Theme

STAGES = ("capture", "times and recipes", "plan", "floor", "compile")
_STEP_COLUMNS = [
    "layers", "plain ms", "fitted ms", "predicted to add", "overhead", "µs / operation", "executor",
]  # fmt: skip
LINEAR = 1.2
"""An exponent up to that is called linear: times differ by a tenth from run to run."""
NOTICEABLE_S = 1.0
"""A stage that takes less than that is too short for an exponent to mean much."""


def exponent_of(before: tuple[float, float], after: tuple[float, float]) -> float | None:
    """The power of the size with which a cost grows, from (size, cost) to (size, cost)."""
    (size, cost), (larger, higher) = before, after
    if min(cost, higher) <= 0:
        return None
    return math.log(higher / cost) / math.log(larger / size)


def write_markdown(result: dict[str, Any]) -> str:
    """The tables of one result."""
    about, seen = result["about"], result.get("singles", {})
    rows = [row for row in seen.values() if "error" not in row]
    missing = [part for part in growth.SINGLE_PARTS if part not in seen]
    shape = ", ".join(f"{name} {value}" for name, value in growth.SHAPE.items())
    lines = [
        "# How do legroom's own time and memory grow with the model?",
        "",
        f"{about['date']} · commit {about['commit']} · torch {about['torch']} · Python "
        f"{about['python']} · {about['machine']} · `{about['command']}`. GPT-2 ({shape}), each "
        "in a process of its own, one thread, exactness `bitwise`, executor `eager`. Seconds of "
        "processor time, each stage once.",
        "",
        "## Time",
        "",
        "*Capture*: the whole step. *Times and recipes*: its operations timed, the presets "
        f"tried. *Plan*: for {growth.LEVEL} of the activations. *Floor*: the lowest peak, after "
        f"that. *Compile*: what the first {growth.WARMUP_STEPS} fitted steps take longer than "
        f"later ones. In brackets the exponent since the row above. {conclusion_of(rows)}",
        "",
        *table(["layers", "operations", "tensors", *STAGES], [*_time_rows(rows), *_errors(seen)]),
        "",
        "## A step",
        "",
        f"Medians of {growth.TIMED_STEPS} steps, processor time, plain first and "
        "then fitted: what else the machine does in between shows in it. *Overhead*: fitted less "
        "plain less what the plan adds by its own prediction, in all and for each operation. "
        "*Executor*: what legroom predicts of it.",
        "",
        *table(
            _STEP_COLUMNS,
            [_step_row(row) for row in rows],
        ),
        "",
        "## Memory",
        "",
        "By how much the process grew at its highest during each stage, in MiB.",
        "",
        *table(["layers", *STAGES], [_memory_row(row) for row in rows]),
        "",
    ]
    if missing:
        lines += [f"Not run: {', '.join(missing)}.", ""]
    return "\n".join(lines)


def conclusion_of(rows: list[dict[str, Any]]) -> str:
    """Where growth stops being linear, in a sentence."""
    steep = []
    for before, after in pairwise(rows):
        for stage in STAGES:
            power = _exponent(before, after, stage)
            long = after["seconds"][stage] >= NOTICEABLE_S
            if power is not None and long and power > LINEAR:
                sizes = f"{before['num_layers']} to {after['num_layers']} layers"
                steep.append(f"{stage} from {sizes} ({power:.1f})")
    if len(rows) < 2:
        return "Nothing to compare."
    most = max(row["num_layers"] for row in rows)
    if not steep:
        return f"Every stage of {NOTICEABLE_S:g} s or more grows linearly up to {most} layers."
    return f"Steeper than linear (exponent above {LINEAR:g}): {', '.join(steep)}."


def _exponent(before: dict[str, Any], after: dict[str, Any], stage: str) -> float | None:
    return exponent_of(
        (before["num_operations"], before["seconds"][stage]),
        (after["num_operations"], after["seconds"][stage]),
    )


def _time_rows(rows: list[dict[str, Any]]) -> list[list[str]]:
    body = []
    for number, row in enumerate(rows):
        cells = [str(row[key]) for key in ("num_layers", "num_operations", "num_tensors")]
        for stage in STAGES:
            power = _exponent(rows[number - 1], row, stage) if number else None
            shown = "" if power is None else f" ({power:.1f})"
            late = ", out of time" if stage == "plan" and row["timed_out"] else ""
            cells.append(f"{row['seconds'][stage]:.1f}{shown}{late}")
        body.append(cells)
    return body


def _errors(seen: dict[str, Any]) -> list[list[str]]:
    return [[part, row["error"]] for part, row in seen.items() if "error" in row]


def _step_row(row: dict[str, Any]) -> list[str]:
    overhead_ms = row["fitted_ms"] - row["plain_ms"] - row["added_ms"]
    times = [row["plain_ms"], row["fitted_ms"], row["added_ms"], overhead_ms]
    each = f"{1000 * overhead_ms / row['num_operations']:.1f}"
    executor = f"{row['executor_ms']:.1f}" if "executor_ms" in row else "–"
    return [str(row["num_layers"]), *(f"{time_ms:.1f}" for time_ms in times), each, executor]


def _memory_row(row: dict[str, Any]) -> list[str]:
    grown = row["grown_bytes"]
    cells = ["–" if grown[stage] is None else mib(grown[stage]) for stage in STAGES]
    return [str(row["num_layers"]), *cells]


GROWTH = Theme(
    name="growth",
    module="benchmarks.growth",
    case_parts=(),
    single_parts=tuple(growth.SINGLE_PARTS),
    write_markdown=write_markdown,
)
