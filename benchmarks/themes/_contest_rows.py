"""The rows of the contest as its tables and its page read them: verdicts, ratios, predictions.

In goes what was measured of a case, heat by heat; out come rows beside the plain row of their heat.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from benchmarks.contest import Verdict, judge
from benchmarks.contest._heats import OURS, PLAIN, terms_of
from benchmarks.contest._judge import SAME_TIME, clock_of, interval, ratios_of
from benchmarks.themes._contest_notes import NOTES

_READY = "ready"
Row = dict[str, Any]


@dataclass(frozen=True)
class Judged:
    """Legroom against one row of a peer's.

    Attributes:
        peer: Its name; of legroom itself with less to choose from, name and terms.
    """

    peer: str
    label: str
    theirs: Row
    ours: Row
    verdict: Verdict
    explanation: str


@dataclass(frozen=True)
class Prediction:
    """What a fitted row was predicted to be, beside what it was.

    Attributes:
        peak_off: Measured peak by predicted, less one.
        time_off: Measured added time less predicted, as a share of the plain step.
    """

    where: str
    peak_off: float
    time_off: float


def heats_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """What was measured of a case; nothing if it failed."""
    return list(answer.get("heats", ()))


def rounds_of(heat: dict[str, Any]) -> int:
    """How often contestants took their turns; 0 where none did."""
    return max((len(row["cpu_ms"]) for row in heat["rows"]), default=0)


def merge_answers(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The heats of both; a new one takes the place of those that share an entrant with it."""
    taken = {label for heat in heats_of(new) for label in _entrants(heat)}
    kept = [heat for heat in heats_of(old) if not taken & _entrants(heat)]
    return {**new, "heats": [*kept, *heats_of(new)]}


def _entrants(heat: dict[str, Any]) -> set[str]:
    """Who was drawn: without plain, and without legroom where it meets others."""
    absent = {PLAIN} if heat["terms"] is None else {PLAIN, OURS}
    return {row["label"] for row in heat["rows"] if row["peer"] not in absent}


def case_rows(answer: dict[str, Any]) -> list[tuple[Row, Row]]:
    """Every row with the plain row of its heat; plain itself once for each heat."""
    return [(row, heat["rows"][0]) for heat in heats_of(answer) for row in heat["rows"]]


def line_rows(answer: dict[str, Any]) -> list[tuple[Row, Row]]:
    """The same without controls: what a chart draws."""
    return [(row, plain) for row, plain in case_rows(answer) if not is_control(row, plain)]


def is_control(row: Row, plain: Row) -> bool:
    """Whether it is plain in a further process."""
    return row["peer"] == PLAIN and row["label"] != plain["label"]


def controls(answers: dict[str, dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """By control, and by case, the medians of its times by those of plain in the same heat."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, answer in answers.items():
        for row, plain in case_rows(answer):
            if is_control(row, plain) and ratios_of(row, plain):
                by_case = found.setdefault(row["label"], {})
                by_case.setdefault(name, []).append(median_ratio(row, plain))
    return found


def judged_rows(answer: dict[str, Any], case: str = "") -> list[Judged]:
    """Legroom against each row of a peer that trained."""
    found = []
    for heat in heats_of(answer):
        by_label = {row["label"]: row for row in heat["rows"]}
        for theirs in heat["rows"]:
            if theirs["status"] == _READY and theirs["rival"]:
                ours = by_label[theirs["rival"]]
                found.append(_judge(ours, theirs, heat["rows"], case))
    return found


def _same_time(rows: list[Row], clock: str) -> float:
    """By how much plain differs from itself in this heat, and at least what is always allowed."""
    plain = rows[0]
    again = [row for row in rows if is_control(row, plain) and not row["setting"]]
    ratios = [ratios_of(row, plain, clock) for row in again]
    return max([SAME_TIME, *(abs(statistics.median(each) - 1) for each in ratios if each)])


def _judge(ours: Row, theirs: Row, rows: list[Row], case: str) -> Judged:
    plain = rows[0]
    verdict = judge(ours, theirs, same_time=_same_time(rows, clock_of(ours, theirs)))
    explanation = verdict.why or _explain(ours, theirs, plain)
    note = NOTES.get((case, theirs["label"]), "")
    return Judged(
        peer=line_of(theirs),
        label=theirs["label"],
        theirs=theirs,
        ours=ours,
        verdict=verdict,
        explanation=f"{explanation}. {note}" if note else explanation,
    )


def _explain(ours: Row, theirs: Row, plain: Row) -> str:
    """What was predicted to be added to plain's time, beside what was added."""
    if not (ours.get("cpu_ms") and plain.get("cpu_ms") and ours.get("report")):
        return ""
    clock = clock_of(ours, theirs)
    plain_ms = statistics.median(plain[clock])
    return (
        f"predicted {1 + ours['report']['added_ms'] / plain_ms:.3f} of plain, measured "
        f"{median_ratio(ours, plain):.3f}; it has {median_ratio(theirs, plain):.3f}"
    )


def median_ratio(row: Row, other: Row) -> float:
    """The median of a row's times by another's, round by round."""
    return statistics.median(ratios_of(row, other) or [float("nan")])


def time_against(row: Row, plain: Row) -> str:
    """That, with its interval, for a table."""
    if row is plain:
        return "1"
    ratios = ratios_of(row, plain)
    if not ratios:
        return "–"
    low, high = interval(ratios)
    return f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"


def predictions(answers: dict[str, dict[str, Any]]) -> dict[str, list[Prediction]]:
    """Of all fitted rows, by legroom's terms."""
    found: dict[str, list[Prediction]] = {}
    for name, answer in answers.items():
        for row, plain in case_rows(answer):
            report = row.get("report")
            if row["status"] != _READY or not report or not plain.get("cpu_ms"):
                continue
            clock = clock_of(row, plain)
            plain_ms = statistics.median(plain[clock])
            added_ms = (median_ratio(row, plain) - 1) * plain_ms
            found.setdefault(_terms(row), []).append(
                Prediction(
                    where=f"{name}, {row['label']}",
                    peak_off=row["peak_bytes"] / report["predicted_peak_bytes"] - 1,
                    time_off=(added_ms - report["added_ms"]) / plain_ms,
                )
            )
    return found


def _terms(row: Row) -> str:
    return terms_of(row["setting"]) if row["peer"] == OURS else "presets"


def line_of(row: Row) -> str:
    """The line that a row is a point of: a peer, or legroom on certain terms."""
    return f"{OURS} {_terms(row)}" if row["peer"] == OURS else str(row["peer"])
