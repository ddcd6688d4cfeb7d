"""Theme `ladder`: what does each technique add to the row above?

In go the contest's rows of `benchmarks.ladder`, a rung each; out come a table to be read from top
to bottom, and what the plans were made of. Whatever could not be measured is a row with its reason.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from benchmarks import ladder
from benchmarks.contest import ContestOptions, measure_heats
from benchmarks.contest._contest import ROUNDS, num_parts_of
from benchmarks.contest._heats import OURS, PLAIN
from benchmarks.contest._judge import clock_of
from benchmarks.contest.worker import WARMUP_STEPS
from benchmarks.themes._contest_rows import Row, case_rows, median_ratio, time_against
from benchmarks.themes._tables import mib, table
from benchmarks.themes._theme import Run, Theme

PART = "ladder"
_READY = "ready"
_NOTHING = "–"
_ABOUT_BUDGETS = (
    "Each row may use all that the rows above it may, and what it names. *Free*: the lowest peak "
    "that is planned to take 2 % more time at most; *lowest*: the lowest of all. *Change* is "
    "against the row above. Time is the median of the ratios to plain's step in the same round, "
    "with its 95 % interval: processor time, or the wall's where tensors lie on the disk. *Loss* "
    "and *gradients*: how far those of the first step are from plain's, the worse of the two "
    "budgets. Fusing cannot be left out of a plan, so it is the first row: everything that "
    "backward reads is held there."
)


def options_of(run: Run) -> ContestOptions:
    """What the command line asks for."""
    return ContestOptions(
        peers=(OURS,),
        size=run.size,
        rounds=run.rounds or ROUNDS,
        threads=run.threads,
        shares_cache=True,
    ).resolved()


def measure(name: str, run: Run) -> dict[str, Any]:
    """The ladder of one case."""
    options = options_of(run)
    return measure_heats(
        ladder.heats(options),
        name,
        options,
        run.store,
        commit=run.commit,
        on_progress=run.on_progress,
    )


def num_parts(run: Run) -> int:
    """How much there is to do for a case."""
    options = options_of(run)
    return num_parts_of(ladder.heats(options), options)


# -- what is written -----------------------------------------------------------------------------


def write_markdown(result: dict[str, Any]) -> str:
    """The tables of one result."""
    about = result["about"]
    lines = [
        "# What does each technique add to the row above?",
        "",
        f"{about['date']} · commit {about['commit']} · torch {about['torch']} · Python "
        f"{about['python']} · {about['machine']} · `{about['command']}`. Cases in size "
        f"`{about.get('size', 'small')}`; {about.get('rounds', '?')} rounds, every rung in a "
        f"process of its own with {about.get('threads', 1)} thread, {WARMUP_STEPS} warm-up steps, "
        "taking turns with plain as in [the contest](../README.md).",
        "",
        _ABOUT_BUDGETS,
        "",
        *(line for name, row in result["cases"].items() for line in _section(name, row[PART])),
        *_names(),
    ]
    return "\n".join(lines)


def _section(name: str, answer: dict[str, Any]) -> Iterable[str]:
    yield from (f"## {name}", "")
    if "error" in answer:
        yield from (answer["error"], "")
        return
    by_rung = rows_of(answer)
    yield from (*_ladder(by_rung), "", "What the plans are made of:", "", *_plans(by_rung), "")


Rungs = dict[str, dict[str, tuple[Row, Row]]]


def rows_of(answer: dict[str, Any]) -> Rungs:
    """By rung and budget: its row and plain's of the same heat; plain's own is the first rung."""
    found: Rungs = {}
    for row, plain in case_rows(answer):
        if row["peer"] == PLAIN:
            rung = found.setdefault(PLAIN, {})
            rung |= {budget: (row, plain) for budget in ladder.BUDGETS if budget not in rung}
        else:
            found.setdefault(row["label"], {})[row["setting"]["budget"]] = (row, plain)
    return found


def _ladder(by_rung: Rungs) -> list[str]:
    body = []
    above: dict[str, int] = {}
    for title, by_budget in by_rung.items():
        cells = [title if title == PLAIN else f"+ {title}"]
        for budget in ladder.BUDGETS:
            row, plain = by_budget[budget]
            cells += _cells(row, plain, above.get(budget))
            above |= {budget: row["peak_bytes"]} if row["status"] == _READY else {}
        body.append([*cells, *differences([row for row, _ in by_budget.values()])])
    each = ("peak MiB", "change", "time / plain")
    head = [f"{budget}: {what}" for budget in ladder.BUDGETS for what in each]
    return table(["", *head, "loss off", "gradients off"], body)


def _cells(row: Row, plain: Row, above_bytes: int | None) -> list[str]:
    """Peak, how it changed, and time; what went wrong instead."""
    if row["status"] != _READY:
        why = row.get("why", "")
        return [f"{row['status']}{f': {why}' if why else ''}", _NOTHING, _NOTHING]
    change = "" if above_bytes is None else f"{100 * (row['peak_bytes'] / above_bytes - 1):+.1f} %"
    return [mib(row["peak_bytes"]), change, time_against(row, plain)]


def differences(rows: list[Row]) -> list[str]:
    """How far loss and gradients are from plain's, the worst of the rows that trained."""
    compared = [row for row in rows if row["status"] == _READY and row["num_compared"]]
    if not compared:
        return [_NOTHING, _NOTHING]
    loss_off = max(row["loss_off"] for row in compared)
    loss = f"{loss_off:.0e}" if loss_off else "0"
    if not any(row["num_different"] for row in compared):
        return [loss, "same bits"]
    missing = max(row.get("num_missing", 0) for row in compared)
    off = f"{max(row['gradient_off'] for row in compared):.0e}"
    return [loss, f"{off}, {missing} missing" if missing else off]


def _plans(by_rung: Rungs) -> list[str]:
    body = []
    for title, by_budget in by_rung.items():
        for budget, (row, plain) in by_budget.items():
            report = row.get("report")
            if row["status"] != _READY or not report:
                continue
            body.append(
                [
                    f"{title}, {budget}",
                    mib(report["predicted_peak_bytes"]),
                    mib(row["peak_bytes"]),
                    *_added(row, plain),
                    f"{report['planning_s']:.0f}",
                    _used(report),
                ]
            )
    head = ["rung, budget", "predicted peak MiB", "measured", "predicted time / plain", "measured"]
    return table([*head, "planning s", "tensors by way, and rewrites"], body)


def _added(row: Row, plain: Row) -> list[str]:
    """Time by plain's, predicted and measured."""
    if not row["cpu_ms"] or not plain["cpu_ms"]:
        return [_NOTHING, _NOTHING]
    plain_ms = statistics.median(plain[clock_of(row, plain)])
    return [f"{1 + row['report']['added_ms'] / plain_ms:.3f}", f"{median_ratio(row, plain):.3f}"]


def _used(report: dict[str, Any]) -> str:
    held = [f"{way} {each['tensors']}" for way, each in sorted(report["ways"].items())]
    return ", ".join([*held, *report.get("rewrites", ())])


def _names() -> Iterable[str]:
    body = [
        [f"+ {rung.title}", ", ".join(f"`{name}`" for name in rung.adds) or _NOTHING]
        for rung in ladder.rungs()
    ]
    yield from ("## What a row adds", "", *table(["row", "`legroom ways` has it as"], body), "")


LADDER = Theme(
    name="ladder",
    module="benchmarks.ladder",
    case_parts=(PART,),
    write_markdown=write_markdown,
    about_of=lambda run: asdict(options_of(run)),
    measure=measure,
    num_parts=num_parts,
    default_cases=ladder.CASES,
)
