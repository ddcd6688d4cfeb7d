"""Theme `plan`: does the plan fit, is it near the optimum, and is it better than recipes?

In goes what `benchmarks.plan` measured, by case and part, and the parts that are measured once;
out come its tables. Whatever could not be measured is a row with its error.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks import plan
from benchmarks.themes._tables import mib, percent, table
from benchmarks.themes._theme import Theme

_PLANNED, _BELOW = "planned", "below floor"
_SAME_MS = 1e-6
_PLAN_HEAD = ["predicted", "added ms", "of the step", "bound ms", "gap", "found by", "order", "s"]


def write_markdown(result: dict[str, Any]) -> str:
    """The tables of one result."""
    about, rows, singles = result["about"], result["cases"], result["singles"]
    levels = {name: row["levels"] for name, row in rows.items()}
    lines = [
        "# Does the plan fit, is it near the optimum, and is it better than recipes?",
        "",
        f"{about['date']} · commit {about['commit']} · torch {about['torch']} · Python "
        f"{about['python']} · {about['machine']} · `{about['command']}`. Cases in size `small`, "
        "exactness `bitwise`; peaks and times are the simulator's, from operations that were "
        f"measured here one by one; at most {about['time_limit_s']:.0f} s of solving for a budget.",
        "",
        *_summary(levels),
        "",
        *_case_section(levels),
        *_level_section(levels),
        *_recipe_section(levels),
        *_frontier_section(levels),
        *_plain_section(rows),
        *_deep_section(singles["deep"], about),
        *_reference_section(singles["reference"]),
        *_limited_section(singles["limited"]),
    ]
    return "\n".join(lines)


# -- summary -----------------------------------------------------------------------------------


def _summary(levels: dict[str, Any]) -> list[str]:
    done = {name: seen for name, seen in levels.items() if "error" not in seen}
    rows = [row for seen in done.values() for row in seen["rows"]]
    planned = [row for row in rows if row["status"] == _PLANNED]
    below = [row for row in rows if row["status"] == _BELOW]
    if not planned:
        return [f"**Summary:** no case of {len(levels)} could be planned."]
    gaps = [row["gap"] for row in planned]
    costly = [row["gap"] for row in planned if row["added_ms"] > 0]
    over = sum(row["predicted_peak_bytes"] > row["budget_bytes"] for row in planned)
    return [
        f"**Summary:** {len(done)} of {len(levels)} cases captured; {len(rows)} budgets: "
        f"{len(planned)} planned ({over} of them over budget, "
        f"{sum(row['timed_out'] for row in planned)} stopped by the time limit), {len(below)} "
        f"below the floor ({sum(row['passed'] for row in below)} with the right floor in the "
        f"error), {len(rows) - len(planned) - len(below)} failed. Gap: median "
        f"**{percent(statistics.median(gaps))}** (of the {len(costly)} plans that add time: "
        f"{percent(statistics.median(costly or [0.0]))}), worst {percent(max(gaps))}. Solving: "
        f"worst **{max(row['solve_s'] for row in (*planned, *below)):.1f} s**; finding the floor: "
        f"worst {max(seen['floor_s'] for seen in done.values()):.1f} s.",
    ]


# -- levels ------------------------------------------------------------------------------------


def _case_section(levels: dict[str, Any]) -> Iterable[str]:
    head = [
        *("case", "capture s", "timing and presets s", "floor s", "operations", "tensors"),
        *("pieces", "step ms", "plain MiB", "state MiB", "floor MiB"),
    ]
    body = [
        [
            name,
            *(f"{seen[key]:.1f}" for key in ("capture_s", "timing_s", "floor_s")),
            *(str(seen[key]) for key in ("num_operations", "num_candidates", "num_pieces")),
            f"{seen['step_ms']:.0f}",
            *(mib(seen[key]) for key in ("plain_peak_bytes", "state_bytes", "floor_bytes")),
        ]
        if "error" not in seen
        else [name, seen["error"]]
        for name, seen in levels.items()
    ]
    yield from (
        "## The cases: capturing, timing, floor",
        "",
        "Seconds to capture, to time operations (those not in the cache), to try the presets and "
        "to find the lowest budget; *tensors* are those that backward reads and a plan decides on.",
        "",
        *table(head, body),
        "",
    )


def _level_section(levels: dict[str, Any]) -> Iterable[str]:
    body = [
        [name, row["level"], mib(row["budget_bytes"]), *_plan_cells(row)]
        for name, seen in levels.items()
        if "error" not in seen
        for row in seen["rows"]
    ]
    yield from (
        "## Plans by level of activations",
        "",
        "A level is a budget of state plus that share of the rest; sizes in MiB. One planner "
        "serves all rows of a case, from the top down and after the floor was found, so that "
        "plans found for one budget help the next. The gap is of the whole step: (added − bound) "
        "/ (step + bound).",
        "",
        *table(["case", "level", "budget", *_PLAN_HEAD], body),
        "",
    )


def _plan_cells(row: dict[str, Any], less_bytes: int = 0, unit: float = 2**20) -> list[str]:
    """Cells below `_PLAN_HEAD`, with the peak in the unit and less what is not counted."""
    if row["status"] == _BELOW:
        verdict = "as it is" if row["passed"] else "**which is wrong**"
        floor = (row["named_floor_bytes"] - less_bytes) / unit
        blank = [""] * (len(_PLAN_HEAD) - 2)
        return [f"below floor; error names {floor:.1f}, {verdict}", *blank, f"{row['solve_s']:.1f}"]
    if row["status"] != _PLANNED:
        return [row["error"]]
    is_over = row["predicted_peak_bytes"] > row["budget_bytes"]
    return [
        f"{(row['predicted_peak_bytes'] - less_bytes) / unit:.1f}" + " **over**" * is_over,
        f"{row['added_ms']:.1f}",
        percent(row["share_of_step"]),
        f"{row['bound_ms']:.1f}",
        percent(row["gap"]),
        row["winner"],
        row["order"],
        f"{row['solve_s']:.1f}" + ", time limit" * row["timed_out"],
    ]


# -- recipes -----------------------------------------------------------------------------------


def _recipe_section(levels: dict[str, Any]) -> Iterable[str]:
    verdicts = {name: _verdict(seen) for name, seen in levels.items()}
    count = {word: list(verdicts.values()).count(word) for word in ("lower", "same", "higher")}
    head = [
        "case",
        "peak MiB",
        "per-block ms",
        "plan ms",
        "bound ms",
        "plan / per-block",
        "plan is",
    ]
    body = []
    for name, verdict in verdicts.items():
        seen = levels[name].get("recipe")
        if seen is None or seen["status"] != _PLANNED:
            body.append([name, *[""] * 5, verdict])
            continue
        recipe_ms = seen["recipe_added_ms"]
        body.append(
            [
                name,
                mib(seen["recipe_peak_bytes"]),
                *(f"{each:.1f}" for each in (recipe_ms, seen["added_ms"], seen["bound_ms"])),
                f"{seen['added_ms'] / recipe_ms:.2f}" if recipe_ms else "–",
                verdict,
            ]
        )
    yield from (
        "## Against checkpointing every block, at the peak that it reaches",
        "",
        f"The plan adds less time on **{count['lower']}** of {len(levels)} cases, the same on "
        f"{count['same']}, more on {count['higher']}.",
        "",
        *table(head, body),
        "",
    )


def _verdict(seen: dict[str, Any]) -> str:
    if "error" in seen:
        return seen["error"]
    row = seen["recipe"]
    if row is None:
        return "no blocks that repeat"
    if row["status"] != _PLANNED:
        return row.get("error", row["status"])
    difference_ms = row["added_ms"] - row["recipe_added_ms"]
    if abs(difference_ms) <= _SAME_MS:
        return "same"
    return "lower" if difference_ms < 0 else "higher"


def _frontier_section(levels: dict[str, Any]) -> Iterable[str]:
    body = []
    for name, seen in levels.items():
        if "error" in seen:
            continue
        presets = ", ".join(
            f"{each['name']} {mib(each['predicted_peak_bytes'])} / {each['added_ms']:.0f}"
            for each in seen["presets"]
        )
        frontier = seen["frontier"]
        if "error" in frontier:
            body.append([name, frontier["error"], "", "", "", presets])
            continue
        points = ", ".join(
            f"{mib(each['predicted_peak_bytes'])} / {each['added_ms']:.0f}"
            for each in frontier["points"]
        )
        facts = ["yes" if frontier[key] else "**no**" for key in ("is_monotone", "fits")]
        body.append([name, *facts, f"{frontier['seconds']:.1f}", points, presets])
    yield from (
        "## The frontier, and the presets beside it",
        "",
        "Peak in MiB / added ms, from the plain peak down to the floor. Monotone: a smaller budget "
        "never costs less.",
        "",
        *table(["case", "monotone", "within budgets", "s", "frontier", "presets"], body),
        "",
    )


# -- prediction and measurement ------------------------------------------------------------------


def _plain_section(rows: dict[str, Any]) -> Iterable[str]:
    body, worst = [], 0.0
    for name, row in rows.items():
        seen, measured = row["levels"], row["plain_peak"]
        if "error" in seen or "error" in measured:
            body.append([name, seen.get("error") or measured["error"]])
            continue
        predicted_bytes, peak_bytes = seen["plain_peak_bytes"], measured["peak_bytes"]
        difference = predicted_bytes / peak_bytes - 1
        worst = max(worst, abs(difference))
        cells = [f"{predicted_bytes:,}", f"{peak_bytes:,}", f"{100 * difference:+.3f} %"]
        body.append([name, *cells, measured["peak_phase"]])
    head = ["case", "predicted, bytes", "measured, bytes", "difference", "phase of the peak"]
    yield from (
        "## The plain step's peak: predicted and measured",
        "",
        "Measured by the meter on a third step, in a process of its own. Largest difference: "
        f"{percent(worst)}.",
        "",
        *table(head, body),
        "",
    )


# -- what is measured once -----------------------------------------------------------------------


def _deep_section(seen: dict[str, Any], about: dict[str, Any]) -> Iterable[str]:
    yield from ("## A GPT-2 of 48 layers", "")
    if "error" in seen:
        yield from (seen["error"], "")
        return
    body = [[row["level"], mib(row["budget_bytes"]), *_plan_cells(row)] for row in seen["rows"]]
    yield from (
        f"Captured in {seen['capture_s']:.1f} s, operations timed and presets tried in "
        f"{seen['timing_s']:.1f} s; {seen['num_operations']} operations, "
        f"{seen['num_candidates']} tensors to decide on; plain peak {mib(seen['plain_peak_bytes'])}"
        f" MiB; at most {about['deep_time_limit_s']:.0f} s of solving for a budget.",
        "",
        *table(["level", "budget", *_PLAN_HEAD], body),
        "",
    )


def _reference_section(seen: dict[str, Any]) -> Iterable[str]:
    yield from ("## The Llama-style reference: published peaks as budgets", "")
    if "error" in seen:
        yield from (seen["error"], "")
        return
    less_bytes = seen["uncounted_bytes"]
    body = [
        [
            row["setting"],
            *(
                f"{row[key] / 1e6:.1f}" if row.get(key) else ""
                for key in ("published_bytes", "measured_bytes")
            ),
            *_plan_cells(row, less_bytes, 1e6),
        ]
        for row in seen["rows"]
    ]
    presets = ", ".join(
        f"{each['name']} {(each['predicted_peak_bytes'] - less_bytes) / 1e6:.1f} / "
        f"{each['added_ms']:.0f}"
        for each in seen["presets"]
    )
    yield from (
        "16 blocks of RMSNorm, 4-head causal attention and SwiGLU; width 128, vocabulary 500, "
        "batch 2, length 256, float32; forward and backward only. Sizes in MB of 10⁶ bytes: "
        f"gradients count, the {less_bytes / 1e6:.1f} MB of parameters and inputs do not. "
        "*Published* is of PyTorch's own means on a model of this description, *measured* is of "
        "the model here in the same way (the allocator's events); the plan is for the published "
        "peak as its budget.",
        "",
        f"Predicted plain peak: {(seen['plain_peak_bytes'] - less_bytes) / 1e6:.1f} MB; floor: "
        f"{(seen['floor_bytes'] - less_bytes) / 1e6:.1f} MB, found in {seen['floor_s']:.1f} s; "
        f"step: {seen['step_ms']:.0f} ms. Presets, MB / added ms: {presets}.",
        "",
        *table(["setting", "published", "measured", *_PLAN_HEAD], body),
        "",
    )


def _limited_section(seen: dict[str, Any]) -> Iterable[str]:
    yield from ("## Planning where the plain step does not fit", "")
    if "error" in seen:
        yield from (seen["error"], "")
        return
    body = []
    for action, row in seen["rows"].items():
        if "error" in row:
            body.append([action, row["error"]])
            continue
        outcome = row.get("failed") or "done"
        if "predicted_peak_bytes" in row:
            outcome = f"planned: {mib(row['predicted_peak_bytes'])} MiB, {row['added_ms']:.1f} ms"
        before, highest = row["before_bytes"], row["highest_bytes"]
        body.append(
            [
                action,
                outcome,
                f"{row['seconds']:.1f}",
                *(mib(each["VmData"]) for each in (before, highest)),
                mib(highest["VmData"] - before["VmData"]),
                *(mib(each["VmRSS"]) for each in (before, highest)),
            ]
        )
    head = [
        "process",
        "outcome",
        "s",
        "data before",
        "highest",
        "more",
        "resident before",
        "highest",
    ]
    yield from (
        f"`{seen['case']}`, whose plain step peaks at {mib(seen['plain_peak_bytes'])} MiB, in a "
        f"process whose data (`RLIMIT_DATA`) may grow by {100 * seen['share']:.0f} % of that, "
        f"{mib(seen['allowed_bytes'])} MiB, from before the model is built; what planning loads "
        f"and the operations that it times count. *plan* is `legroom.plan(step, "
        f'budget="{seen["budget"]}")` without cached times, *step* is three plain steps. MiB; '
        "highest of a look every 2 ms.",
        "",
        *table(head, body),
        "",
    )


PLAN = Theme(
    name="plan",
    module="benchmarks.plan",
    case_parts=tuple(plan.CASE_PARTS),
    single_parts=tuple(plan.SINGLE_PARTS),
    about={"time_limit_s": plan.TIME_LIMIT_S, "deep_time_limit_s": plan.DEEP_TIME_LIMIT_S},
    write_markdown=write_markdown,
)
