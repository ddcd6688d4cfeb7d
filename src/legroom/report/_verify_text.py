"""What `legroom verify` found, in the terminal: a verdict, what was compared, what differs."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from legroom.engine import Difference, Verification
from legroom.report._tables import make_table, shorten
from legroom.units import format_bytes, format_share

_FIGURES = {
    "compared": 8,
    "different": 9,
    "largest difference": 18,
    "relative error": 14,
    "step": 4,
}


def print_verification(result: Verification, console: Console, *, num_rows: int = 10) -> None:
    """Print the result; `num_rows` bounds the table of what differs."""
    console.print()
    console.print(f"[dim]{escape(result.target)}[/dim]", highlight=False)
    style = "bold" if result.equal else "bold red"
    console.print(f"[{style}]{escape(verdict(result))}[/{style}]", highlight=False)
    console.print(escape(" · ".join(_facts(result))), highlight=False)
    for note in result.notes:
        console.print(f"[yellow]{escape(note)}[/yellow]", highlight=False)
    console.print()
    console.print(_compared(result))
    if result.different:
        console.print()
        console.print(_different(result, num_rows))
        if len(result.different) > num_rows:
            console.print(f"[dim]… and {len(result.different) - num_rows} more[/dim]")


def verdict(result: Verification) -> str:
    """Whether they are equal, and if not where it begins."""
    steps = "1 step" if result.steps == 1 else f"{result.steps} steps"
    total = sum(result.compared.values())
    if result.equal:
        how = (
            "bit for bit"
            if not result.tolerance
            else f"within a relative error of {result.tolerance:g}"
        )
        return f"Equal {how}: {total} tensors over {steps}, plain and fitted."
    first = result.different[0]
    return (
        f"Different: {len(result.different)} of {total} tensors over {steps}. "
        f"The first is {describe(first)}."
    )


def describe(difference: Difference) -> str:
    """Which tensor, of which step, module and line, and what the plan does there."""
    text = f"{_KIND_NAMES.get(difference.kind, difference.kind)} {difference.name}"
    text += f" in step {difference.step}"
    if difference.module:
        text += f", module {difference.module}"
    if difference.line:
        text += f" ({difference.line})"
    return f"{text}, way {difference.way}" if difference.way else text


_KIND_NAMES = {
    "losses": "the loss",
    "gradients": "the gradient of",
    "buffers": "the buffer",
    "parameters": "the parameter",
    "optimizer state": "the optimizer state",
    "random states": "the random state of",
}


def _facts(result: Verification) -> list[str]:
    facts = [result.exactness]
    run = result.run
    if run is not None:
        share = format_share(run.budget_bytes, run.plain_peak_bytes)
        place = "above" if run.budget_bytes > run.plain_peak_bytes else f"{share} of"
        facts.append(f"budget {format_bytes(run.budget_bytes)}, {place} the plain step's peak")
        facts.append(f"predicted peak {format_bytes(run.predicted_peak_bytes)}")
        if run.measured_peak_bytes is not None:
            facts.append(f"measured {format_bytes(run.measured_peak_bytes)}")
        used = [
            f"{sums['tensors']} tensors {way}" for way, sums in run.ways.items() if way != "hold"
        ]
        facts.append(", ".join(used) or "nothing but hold: a lower budget would test more")
    return facts


def _compared(result: Verification) -> Table:
    has_errors = bool(result.errors)
    columns = ["kind", "compared", "different"]
    columns += ["largest difference", "relative error"] if has_errors else []
    table = make_table(*columns, title="", figures=_FIGURES)
    for kind, count in result.compared.items():
        different = sum(each.kind == kind for each in result.different)
        row = [kind, str(count), str(different)]
        if has_errors:
            figures = result.errors.get(kind)
            row += (
                ["0", "0"]
                if figures is None
                else [_figure(figures.largest_difference), _figure(figures.relative_error)]
            )
        table.add_row(*row)
    return table


def _different(result: Verification, num_rows: int) -> Table:
    table = make_table(
        "step", "kind", "tensor", "line", "way", "largest difference", "relative error",
        title="What differs, in the order in which a step makes it", figures=_FIGURES,
    )  # fmt: skip
    for each in result.different[:num_rows]:
        table.add_row(
            str(each.step),
            each.kind,
            escape(shorten(each.name)),
            escape(shorten(each.line or "–")),
            escape(each.way or "–"),
            _figure(each.largest_difference),
            _figure(each.relative_error),
        )
    return table


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}"
