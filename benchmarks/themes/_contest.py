"""Theme `contest`: does legroom's line lie on or below everybody else's?

In goes what `benchmarks.contest` measured, heat by heat; out come the tables and the page. Whatever
could not be measured is a row with its reason.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from benchmarks import peers
from benchmarks.contest import ContestOptions, measure_case
from benchmarks.contest._contest import QUICK_ROUNDS, ROUNDS, num_parts
from benchmarks.contest._judge import SAME_TIME
from benchmarks.contest.worker import WARMUP_STEPS
from benchmarks.themes._contest_chart import write_charts
from benchmarks.themes._contest_page import render
from benchmarks.themes._contest_rows import (
    Judged,
    case_rows,
    controls,
    heats_of,
    judged_rows,
    merge_answers,
    predictions,
    rounds_of,
    time_against,
)
from benchmarks.themes._tables import mib, percent, table
from benchmarks.themes._theme import Run, Theme

PART = "contest"
QUICK_CASES = ("gpt2", "resnet50", "vit")
CHECKPOINT_GOAL, BUDGET_GOAL = 0.92, 1.0
_READY = "ready"
FEWEST_ROUNDS = 6
"""Below it no two times enclose the median with 95 %."""


def options_of(run: Run) -> ContestOptions:
    """What the command line asks for."""
    return ContestOptions(
        peers=run.peers or peers.names(),
        quick=run.quick,
        size=run.size,
        rounds=run.rounds or (QUICK_ROUNDS if run.quick else ROUNDS),
        threads=run.threads,
    ).resolved()


def measure(name: str, run: Run) -> dict[str, Any]:
    """The contest on one case."""
    return measure_case(
        name, options_of(run), run.store, commit=run.commit, on_progress=run.on_progress
    )


# -- what is written -----------------------------------------------------------------------------


def write_markdown(result: dict[str, Any]) -> str:
    """The tables of one result."""
    about = result["about"]
    answers = {name: row[PART] for name, row in result["cases"].items()}
    rows = {name: case_rows(answer) for name, answer in answers.items()}
    judged = {name: judged_rows(answer, name) for name, answer in answers.items()}
    lines = [
        "# Does legroom's line lie on or below everybody else's?",
        "",
        f"{about['date']} · commit {about['commit']} · torch {about['torch']} · Python "
        f"{about['python']} · {about['machine']} · `{about['command']}`. Cases in size "
        f"`{about.get('size', 'small')}`; everybody in a process of their own with "
        f"{about.get('threads', 1)} thread, {WARMUP_STEPS} warm-up steps; the rules are in "
        "[the benchmarks' README](../README.md).",
        "",
        *_when(answers),
        *_summary(judged, rows),
        *_few_rounds(answers),
        *_tally_by_peer(judged),
        *_tally_by_case(judged),
        *_losses(judged),
        *_goals(judged),
        *_predictions(answers),
        *_controls(answers),
        *(line for name in answers for line in _case_section(name, answers[name], rows[name])),
        *_who(),
    ]
    return "\n".join(lines)


def _when(answers: dict[str, Any]) -> Iterable[str]:
    """Heats are run one by one, and added to what is there: what each was run with."""
    runs = Counter(
        (heat.get("commit", "?"), heat.get("date", "?"), rounds_of(heat))
        for answer in answers.values()
        for heat in heats_of(answer)
    )
    said = [
        f"{count} at commit {commit} ({date}, {rounds} rounds)"
        for (commit, date, rounds), count in runs.items()
    ]
    yield from (f"Heats: {', '.join(said)}.", "") if said else ()


def _summary(judged: dict[str, list[Judged]], rows: dict[str, Any]) -> Iterable[str]:
    counts = Counter(each.verdict.outcome.value for some in judged.values() for each in some)
    yield (
        f"Cases: {len(rows)}, rows: {sum(len(each) for each in rows.values())}. At the peak of "
        f"each peer's row, on its terms (exactness and kind of kernels): legroom is faster in "
        f"**{counts['win']}**, as fast in **{counts['tie']}**, slower or above the peak in "
        f"**{counts['loss']}**."
    )
    yield ""


def _few_rounds(answers: dict[str, Any]) -> Iterable[str]:
    rounds = [rounds_of(heat) for answer in answers.values() for heat in heats_of(answer)]
    if min(rounds, default=0) < FEWEST_ROUNDS:
        yield f"Fewer than {FEWEST_ROUNDS} rounds: the verdicts are an impression, no result."
        yield ""


def _tally_by_peer(judged: dict[str, list[Judged]]) -> Iterable[str]:
    by_peer: dict[str, Counter[str]] = {}
    ratios: dict[str, list[float]] = {}
    claims: dict[str, str] = {}
    for some in judged.values():
        for each in some:
            claims[each.peer] = peers.get(each.theirs["peer"]).exactness
            by_peer.setdefault(each.peer, Counter())[each.verdict.outcome.value] += 1
            if each.verdict.ratio is not None:
                ratios.setdefault(each.peer, []).append(each.verdict.ratio)
    body = [
        [
            name,
            claims[name],
            *(str(counts[key]) for key in ("win", "tie", "loss")),
            f"{geometric_mean(ratios[name]):.3f}" if ratios.get(name) else "–",
        ]
        for name, counts in by_peer.items()
    ]
    head = ["against", "claims", "wins", "ties", "losses", "legroom's time / its, geometric mean"]
    yield from ("## Wins, ties and losses", "", *table(head, body), "")


def _tally_by_case(judged: dict[str, list[Judged]]) -> Iterable[str]:
    body = []
    for name, some in judged.items():
        counts = Counter(each.verdict.outcome.value for each in some)
        on_or_below = "–" if not some else "no" if counts["loss"] else "yes"
        body.append([name, *(str(counts[key]) for key in ("win", "tie", "loss")), on_or_below])
    head = ["case", "wins", "ties", "losses", "on or below every line"]
    yield from (*table(head, body), "")


def _losses(judged: dict[str, list[Judged]]) -> Iterable[str]:
    body = [
        [
            name,
            each.label,
            _verdict_cell(each),
            mib(each.theirs["peak_bytes"]),
            mib(each.ours.get("peak_bytes") or each.ours.get("floor_bytes") or 0),
            each.explanation,
        ]
        for name, some in judged.items()
        for each in some
        if each.verdict.outcome.value == "loss"
    ]
    head = ["case", "against", "time, legroom / its", "its peak MiB", "legroom's", "why"]
    if body:
        yield from ("## Every loss", "", *table(head, body), "")


def _verdict_cell(judged: Judged) -> str:
    verdict = judged.verdict
    if verdict.ratio is None:
        return "–"
    return f"{verdict.ratio:.3f} ({verdict.low:.3f} to {verdict.high:.3f})"


def _goals(judged: dict[str, list[Judged]]) -> Iterable[str]:
    body = []
    for title, peer, goal in (
        ("checkpointing every block", "checkpoint", CHECKPOINT_GOAL),
        ("torch's best `activation_memory_budget`", "torch-budget", BUDGET_GOAL),
        ("the same with eager kernels", "torch-budget-eager", BUDGET_GOAL),
    ):
        found = {name: lowest_peak(some, peer) for name, some in judged.items()}
        ratios = {
            name: each.verdict.ratio
            for name, each in found.items()
            if each is not None and each.verdict.ratio is not None
        }
        if not ratios:
            continue
        mean = geometric_mean(list(ratios.values()))
        body.append(
            [
                title,
                f"{mean:.3f}",
                f"≤ {goal:g}: {'met' if mean <= goal else 'missed'}",
                str(len(ratios)),
                ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items()),
            ]
        )
    if body:
        yield from (
            "## Time at the same peak",
            "",
            "Geometric mean over the cases of legroom's step time by the other's, at the peak that "
            "the other was measured at. Of torch's settings the best is the one with the lowest "
            "measured peak. Cases in which legroom cannot reach the peak are among the losses "
            "above, and not in the mean.",
            "",
            *table(["at the peak of", "ratio", "goal", "cases", "each"], body),
            "",
        )


def lowest_peak(judged: list[Judged], peer: str) -> Judged | None:
    """What legroom did against the setting of a peer that has the lowest measured peak."""
    found = [each for each in judged if each.peer == peer]
    return min(found, key=lambda each: int(each.theirs["peak_bytes"]), default=None)


def geometric_mean(values: list[float]) -> float:
    """The mean of ratios."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def _predictions(answers: dict[str, Any]) -> Iterable[str]:
    body = []
    for terms, found in predictions(answers).items():
        peaks = [abs(each.peak_off) for each in found]
        times = [abs(each.time_off) for each in found]
        worst_peak = max(found, key=lambda each: abs(each.peak_off))
        worst_time = max(found, key=lambda each: abs(each.time_off))
        body.append(
            [
                terms,
                str(len(found)),
                percent(statistics.median(peaks)),
                f"{percent(worst_peak.peak_off)} ({worst_peak.where})",
                percent(statistics.median(times)),
                f"{percent(worst_time.time_off)} ({worst_time.where})",
            ]
        )
    if body:
        head = ["terms", "rows", "peak off, median", "worst", "added time off, median", "worst"]
        yield from (
            "## Predicted against measured",
            "",
            "All rows that legroom fitted, presets among them. Peaks: measured by predicted, less "
            "one. Added time: measured less predicted, as a share of the plain step.",
            "",
            *table(head, body),
            "",
        )


def _controls(answers: dict[str, Any]) -> Iterable[str]:
    body = []
    for label, by_case in controls(answers).items():
        ratios = [ratio for some in by_case.values() for ratio in some]
        body.append(
            [
                label,
                str(len(ratios)),
                f"{statistics.median(ratios):.3f}",
                f"{min(ratios):.3f} to {max(ratios):.3f}",
                percent(statistics.median(abs(ratio - 1) for ratio in ratios)),
                ", ".join(
                    f"{name} {' '.join(f'{ratio:.3f}' for ratio in some)}"
                    for name, some in by_case.items()
                ),
            ]
        )
    if body:
        head = ["control", "heats", "time / plain, median", "range", "off 1, median", "each"]
        yield from (
            "## The same contestant twice",
            "",
            "Plain in a second process of each heat: what differs there is no contestant's doing. "
            "Verdicts take differences up to that of the heat for none, and those of up to "
            f"{percent(SAME_TIME)} always. *As it comes*: "
            "plain with glibc's own choice of which memory to return, where all others keep it.",
            "",
            *table(head, body),
            "",
        )


def _case_section(name: str, answer: dict[str, Any], rows: list[Any]) -> Iterable[str]:
    yield from (f"## {name}", "")
    if "error" in answer:
        yield from (answer["error"], "")
        return
    body = []
    for row, plain in rows:
        cells = [row["label"]]
        if row["status"] != _READY:
            floor = f" (lowest {mib(row['floor_bytes'])} MiB)" if "floor_bytes" in row else ""
            body.append([*cells, f"{row['status']}{floor}{_colon(row.get('why', ''))}"])
            continue
        report = row.get("report", {})
        stash = row.get("stash_bytes")
        body.append(
            [
                *cells,
                mib(row["peak_bytes"]),
                mib(report["predicted_peak_bytes"]) if report else "",
                mib(row["resident_bytes"] or 0),
                mib(stash) if stash is not None else "–",
                f"{statistics.median(row['wall_ms']):.0f}" if row["wall_ms"] else "–",
                time_against(row, plain),
                f"{row.get('preparation_s', 0):.0f}",
                *_differences(row),
            ]
        )
    head = [
        *("contestant", "peak MiB", "predicted", "resident growth", "stash", "step ms, wall"),
        *("time / plain", "preparation s", "loss off", "gradients off"),
    ]
    yield from (*table(head, body), "")


def _differences(row: dict[str, Any]) -> list[str]:
    """How far loss and gradients are from plain's; unknown where plain could not run."""
    if not row["num_compared"]:
        return ["–", "–"]
    loss = f"{row['loss_off']:.0e}" if row["loss_off"] else "0"
    if row["num_different"] == 0:
        return [loss, "same bits"]
    missing = f", {row['num_missing']} missing" if row.get("num_missing") else ""
    return [loss, f"{row['gradient_off']:.0e}{missing}"]


def _colon(why: str) -> str:
    return f": {why}" if why else ""


def _who() -> Iterable[str]:
    body = [
        [name, peers.get(name).exactness, peers.get(name).summary, peers.get(name).missing()]
        for name in peers.names()
    ]
    yield from ("## Who took part", "")
    yield from table(["contestant", "claims", "what it does", "not here because"], body)
    yield from ("", "## Who could not", "", "Figures are their authors'.", "")
    absent = [
        [each.name, each.published, each.why, each.stand_in or "–"] for each in peers.UNAVAILABLE
    ]
    yield from (*table(["system", "published", "why not here", "here as"], absent), "")


CONTEST = Theme(
    name="contest",
    module="benchmarks.contest",
    case_parts=(PART,),
    write_markdown=write_markdown,
    about_of=lambda run: asdict(options_of(run)),
    write_page=render,
    write_charts=write_charts,
    measure=measure,
    merge=merge_answers,
    num_parts=lambda run: num_parts(options_of(run)),
    quick_cases=QUICK_CASES,
)
