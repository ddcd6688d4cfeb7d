"""The page of the contest: a chart of peak against time for each case, one line per contestant.

In goes the result; out comes one HTML text that opens without a network.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from benchmarks.themes._contest_rows import judged_rows, line_of, line_rows, median_ratio
from legroom.report._page import Page, render_page

_PAGE = Page(
    title="legroom contest",
    sections="contest.html",
    links=(("tally", "Verdicts"), ("charts", "Cases")),
    program=("data", "units", "elements", "charts", "table", "contest", "theme", "contest_start"),
    folder=Path(__file__).parent / "assets",
)


def render(result: dict[str, Any]) -> str:
    """The page, about a megabyte."""
    return render_page(_PAGE, page_data(result))


def page_data(result: dict[str, Any]) -> dict[str, Any]:
    """What the page's program draws: points by line for each case, and the verdicts."""
    answers = {name: next(iter(row.values())) for name, row in result["cases"].items()}
    return {
        "about": result["about"],
        "cases": [_case_data(name, answer) for name, answer in answers.items()],
    }


def _case_data(name: str, answer: dict[str, Any]) -> dict[str, Any]:
    points, absent = [], []
    for row, plain in line_rows(answer):
        if row["status"] != "ready":
            absent.append({"label": row["label"], "why": row.get("why") or row["status"]})
            continue
        ratio = median_ratio(row, plain)
        if math.isnan(ratio):
            continue
        points.append(
            {
                "line": line_of(row),
                "label": row["label"],
                "peak_bytes": row["peak_bytes"],
                "ratio": ratio,
                "step_ms": statistics.median(row["wall_ms"]),
                "preparation_s": row.get("preparation_s", 0.0),
                "gradient_off": row.get("gradient_off", 0.0),
                "is_same": row.get("num_different") == 0,
            }
        )
    verdicts = [
        {
            "label": each.label,
            "peer": each.peer,
            "outcome": each.verdict.outcome.value,
            "ratio": each.verdict.ratio,
            "low": each.verdict.low,
            "high": each.verdict.high,
            "peak_bytes": each.theirs["peak_bytes"],
            "why": each.explanation,
        }
        for each in judged_rows(answer, name)
    ]
    return {
        "name": name,
        "points": points,
        "absent": absent,
        "verdicts": verdicts,
        "error": answer.get("error", ""),
    }
