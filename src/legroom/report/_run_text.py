"""What `legroom run` says: a plan in a few rows before training, then predicted against measured.

In go `RunReport`s and a rich console; out come a paragraph and a short table for each model.
"""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from legroom.engine import RunReport
from legroom.report._plan_text import describe_added
from legroom.report._tables import make_table
from legroom.units import format_bytes, format_ms, format_share

_WIDTHS = {"tensors": 7, "of": 9}
_MOST_ROWS = 5


def print_run_plan(report: RunReport, console: Console) -> None:
    """Print what was planned for a model, before its first step."""
    console.print()
    console.print(f"[bold]{escape(_headline(report))}[/bold]", highlight=False)
    facts = [
        f"budget {format_bytes(report.budget_bytes)}"
        + (f" ({report.budget})" if report.budget else ""),
        f"predicted peak {format_bytes(report.predicted_peak_bytes)}",
        describe_added(report.added_ms, report.executor_ms) + " per step",
        f"{report.exactness}, candidate {report.preset}",
        f"planned in {report.planning_s:.1f} s",
        *([f"rewritten by {', '.join(report.rewrites)}"] if report.rewrites else ()),
    ]
    if report.gradient_error is not None:
        facts.append(f"gradients off by {100 * report.gradient_error:.2g} %")
    console.print(escape(" · ".join(facts)), highlight=False)
    if report.ways:
        table = make_table("way", "tensors", "of", title="", figures=_WIDTHS)
        for way, sums in sorted(report.ways.items(), key=lambda item: -item[1]["bytes"]):
            table.add_row(escape(way), str(sums["tensors"]), format_bytes(sums["bytes"]))
        console.print(table)
    print_not_planned(report, console)


def print_run(report: RunReport, console: Console) -> None:
    """Print a whole run: of every model, what was planned and what was measured."""
    for each in report.models or (report,):
        print_run_plan(each, console)
        if each.measured_peak_bytes is not None:
            print_run_measured(each, console)


def print_run_measured(report: RunReport, console: Console) -> None:
    """Print predicted against measured, once some steps were."""
    measured = report.measured_peak_bytes
    assert measured is not None, "nothing measured yet: a bug of legroom"
    facts = [
        f"tensors peaked at {format_bytes(measured)} by the allocator's count",
        f"predicted {format_bytes(report.predicted_peak_bytes)}"
        f" ({_difference(measured, report.predicted_peak_bytes)})",
        f"budget {format_bytes(report.budget_bytes)} for tensors: {_verdict(report)}",
    ]
    if report.resident_peak_bytes is not None:
        grown = format_bytes(report.resident_peak_bytes)
        facts.append(f"the process grew by {grown}, freed memory that it keeps included")
    if report.step_ms is not None:
        facts.append(f"step {format_ms(report.step_ms)}")
    if report.replans:
        facts.append("planned again" + (f" {report.replans} times" if report.replans > 1 else ""))
    console.print(
        f"[bold]{escape(report.model)}[/bold]: {escape(' · '.join(facts))}\n", highlight=False
    )


def print_not_planned(report: RunReport, console: Console) -> None:
    """Print what runs as it is, and why; nothing where everything is planned."""
    if not report.not_planned:
        return
    console.print("not planned:", highlight=False)
    for what, why in report.not_planned[:_MOST_ROWS]:
        console.print(f"  {escape(what)}: [dim]{escape(why)}[/dim]", highlight=False)
    if len(report.not_planned) > _MOST_ROWS:
        console.print(f"  [dim]… and {len(report.not_planned) - _MOST_ROWS} more[/dim]")


def _headline(report: RunReport) -> str:
    share = format_share(report.predicted_peak_bytes, report.plain_peak_bytes)
    model = report.model or "The step"
    return (
        f"{model}: the plain step peaks at {format_bytes(report.plain_peak_bytes)}; "
        f"planned, at {format_bytes(report.predicted_peak_bytes)}, {share} of it."
    )


def _difference(measured: int, predicted: int) -> str:
    percent = 100 * (measured - predicted) / max(1, predicted)
    return "exactly" if measured == predicted else f"{percent:+.2f} %".replace("-", "−")


def _verdict(report: RunReport) -> str:
    assert report.measured_peak_bytes is not None, "nothing measured yet: a bug of legroom"
    return "kept" if report.measured_peak_bytes <= report.budget_bytes else "exceeded"
