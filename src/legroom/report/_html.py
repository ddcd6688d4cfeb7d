"""The pages: one HTML file for a profile, one for a plan.

In goes the value; out comes text or a file. What a page is made of is listed here.
"""

from __future__ import annotations

from pathlib import Path

from legroom.errors import OutputError
from legroom.plan import PlanReport
from legroom.report._page import Page, render_page
from legroom.report._reportable import Reportable, data_of

_PROFILE = Page(
    title="legroom profile",
    sections="profile.html",
    links=(
        ("books", "Peak"), ("timeline", "Timeline"), ("findings", "Findings"),
        ("source", "Source"), ("modules", "Modules"), ("tensors", "Tensors"),
        ("operations", "Operations"), ("limits", "Limits"),
    ),
    program=(
        "data", "units", "elements", "charts", "places", "table", "verdict", "books",
        "tensor_columns", "timeline", "findings", "source", "modules", "tensors", "operations",
        "limits", "theme", "start",
    ),
)  # fmt: skip

_PLAN = Page(
    title="legroom plan",
    sections="plan.html",
    links=(
        ("frontier", "Frontier"), ("timeline", "Timeline"), ("decisions", "Decisions"),
        ("sweep", "Varied"), ("limits", "Limits"),
    ),
    program=(
        "data", "units", "elements", "charts", "table", "plan_verdict", "plan_frontier",
        "plan_timeline", "plan_decisions", "plan_sweep", "plan_limits", "theme", "plan_start",
    ),
)  # fmt: skip


def render_html(value: Reportable) -> str:
    """The profile or plan as one HTML page of about 1 MiB plus the size of its data."""
    return render_page(_PLAN if isinstance(value, PlanReport) else _PROFILE, data_of(value))


def write_html(value: Reportable, path: str | Path) -> None:
    """Write the page of a profile or a plan: one file of about 1 MiB that opens without network.

    Args:
        value: What `legroom.profile` or `legroom.plan` returned.
        path: The file; what is there is written over.

    Raises:
        OutputError: The file cannot be written.
    """
    text = render_html(value)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
