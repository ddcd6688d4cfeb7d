"""A plan as tables in the terminal.

In go a `PlanReport` and a rich console; out come the verdict, the frontier, the presets, what the
chosen plan does to which lines, what is alive at its peak, and what is not planned.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from legroom.capture import Kind
from legroom.plan import Plan, PlanReport, SweepPoint, largest_that_fits
from legroom.report._decisions import DecisionGroup, group_decisions, sum_by_way
from legroom.report._tables import NarrowTable, make_table
from legroom.units import format_bytes, format_ms, format_share

_WIDTHS = {
    "budget": 9, "of plain": 8, "peak": 9, "added": 9, "of step": 8, "gap": 6, "value": 6, "of": 9,
    "plain peak": 10, "lowest peak": 11, "bytes": 9, "released": 9, "tensors": 7,
}  # fmt: skip
_PRESETS = NarrowTable(
    ("preset", "peak", "of plain", "added", "of step", "what it does"),
    figures=_WIDTHS,
    remarks={"what it does": 20},
)
_DECISIONS = NarrowTable(
    ("released", "added", "tensors", "way", "line", "module", "reason"),
    figures=_WIDTHS,
    paths=("line", "module"),
    remarks={"reason": 30},
)
_ALIVE = NarrowTable(("bytes", "kind", "tensor", "line"), figures=_WIDTHS, paths=("line", "tensor"))


def print_plan(report: PlanReport, console: Console, *, num_rows: int = 10) -> None:
    """Print the plan; `num_rows` bounds the tables of lines and tensors."""
    _print_verdict(report, console)
    if report.frontier:
        console.print(_frontier(report))
    if report.presets:
        _print_presets(report, console)
    if report.sweep:
        _print_sweep(report, console)
    if report.chosen is not None:
        _print_chosen(report, report.chosen, console, num_rows)
    _print_not_planned(report, console, num_rows)


def verdict(report: PlanReport) -> str:
    """What the plain step needs, how low plans go, and what the chosen budget costs."""
    text = (
        f"The plain step peaks at {format_bytes(report.plain_peak_bytes)}; "
        f"plans go down to {format_bytes(report.floor_peak_bytes)}, "
        f"{format_share(report.floor_peak_bytes, report.plain_peak_bytes)} of it."
    )
    return text if report.chosen is None else f"{text} {_verdict_of(report, report.chosen)}"


def format_added(ms: float) -> str:
    """A difference in time, with its sign: `'+3.2 ms'`."""
    if ms == 0:
        return "0"
    return ("+" if ms > 0 else "−") + format_ms(abs(ms))


def describe_added(added_ms: float, executor_ms: float) -> str:
    """What a plan adds, and what legroom's executor does: `'added +1.2 ms by the plan, …'`."""
    if not executor_ms:
        return f"added {format_added(added_ms)}"
    own = f"{format_added(executor_ms)} by legroom's own executor"
    return f"added {format_added(added_ms)} by the plan, {own}"


def _verdict_of(report: PlanReport, plan: Plan) -> str:
    budget = format_bytes(plan.budget_bytes)
    if report.asked_budget:
        budget += f" ({report.asked_budget})"
    if _total_ms(plan) == 0 and not any(each.way != "hold" for each in plan.decisions):
        return f"It fits into {budget} as it is."
    return f"It fits into {budget} at {format_added(_total_ms(plan))} ({_of_step(report, plan)})."


def _total_ms(plan: Plan) -> float:
    return plan.added_ms + plan.executor_ms


def _of_step(report: PlanReport, plan: Plan) -> str:
    return f"{format_share(_total_ms(plan), report.step_ms)} of a step"


def _print_verdict(report: PlanReport, console: Console) -> None:
    title = f"{report.target} · {report.device} · torch {report.torch_version}"
    console.print()
    console.print(f"[dim]{escape(title)}[/dim]", highlight=False)
    console.print(f"[bold]{escape(verdict(report))}[/bold]", highlight=False)
    if report.chosen is not None and report.chosen.timed_out:
        console.print(f"[yellow]{escape(describe_timeout(report.chosen))}[/yellow]")
    pieces = "1 piece" if report.num_pieces == 1 else f"{report.num_pieces} pieces"
    facts = (
        f"step {format_ms(report.step_ms)}, {describe_times(report.measured_share)}",
        f"state {format_bytes(report.state_bytes)}",
        f"{report.num_operations} operations and {report.num_tensors} tensors in {pieces}",
        f"captured in {report.capture_s:.1f} s, solved in {report.solve_s:.1f} s",
        f"{report.exactness}, with {', '.join(report.ways)}",
        *([f"rewritten by {', '.join(report.rewrites)}"] if report.rewrites else ()),
    )
    console.print(escape(" · ".join(facts)), highlight=False)
    console.print()


def describe_times(measured_share: float) -> str:
    """Whether the times behind a plan were measured or modelled."""
    if measured_share >= 0.9995:
        return "all times measured"
    if measured_share <= 0:
        return "all times modelled, none measured"
    return f"{format_share(measured_share, 1)} of that measured, the rest modelled"


def describe_timeout(plan: Plan) -> str:
    """That the solver was stopped, and what is still known."""
    return (
        f"Planning reached its time limit after {plan.solve_s:.0f} s: this is the best plan "
        f"so far, at most {format_share(plan.gap, 1)} slower than the best there is. "
        "More time: --time-limit."
    )


def _table(*columns: str, title: str) -> Table:
    return make_table(*columns, title=title, figures=_WIDTHS)


def _frontier(report: PlanReport) -> Table:
    table = _table(
        "budget", "of plain", "peak", "added", "of step", "gap", "candidate",
        title="Frontier: the least added time for each budget",
    )  # fmt: skip
    for point in report.frontier:
        table.add_row(
            format_bytes(point.budget_bytes),
            format_share(point.budget_bytes, report.plain_peak_bytes),
            format_bytes(point.predicted_peak_bytes),
            format_added(point.added_ms),
            format_share(point.added_ms, report.step_ms),
            format_share(point.gap, 1),
            escape(point.preset),
        )
    return table


def _print_presets(report: PlanReport, console: Console) -> None:
    _PRESETS.print(
        [
            (
                point.name,
                format_bytes(point.predicted_peak_bytes),
                format_share(point.predicted_peak_bytes, report.plain_peak_bytes),
                format_added(point.added_ms),
                format_share(point.added_ms, report.step_ms),
                point.summary,
            )
            for point in report.presets
        ],
        console,
        title="\nWhat recipes of the literature reach",
    )


def _print_sweep(report: PlanReport, console: Console) -> None:
    best = largest_that_fits(report.sweep)
    name = report.swept_argument
    if best is not None:
        console.print(f"\n[bold]{escape(_largest(report, best))}[/bold]", highlight=False)
    table = _table("value", "plain peak", "lowest peak", "fits", title=f"\n{escape(name)}, tried")
    for point in report.sweep:
        table.add_row(
            str(point.value),
            format_bytes(point.plain_peak_bytes),
            format_bytes(point.floor_peak_bytes),
            "yes" if point.fits else "no",
        )
    console.print(table)


def _largest(report: PlanReport, best: SweepPoint) -> str:
    """What is known of the largest value that fits: there may be none tried above it."""
    name = report.swept_argument
    if any(point.value > best.value for point in report.sweep):
        return f"The largest {name} that fits is {best.value}."
    return f"{name} {best.value} fits and is the end of the range; larger may fit too."


def _print_chosen(report: PlanReport, plan: Plan, console: Console, num_rows: int) -> None:
    console.print(f"\n[bold]The plan for {format_bytes(plan.budget_bytes)}[/bold]", highlight=False)
    facts = [
        f"predicted peak {format_bytes(plan.predicted_peak_bytes)}"
        + (f" in {plan.peak_phase}" if plan.peak_phase else ""),
        f"forward leaves {format_bytes(plan.stash_bytes)}",
        f"{describe_added(plan.added_ms, plan.executor_ms)} ({_of_step(report, plan)})",
        f"no plan adds less than {format_ms(plan.bound_ms)}: gap {format_share(plan.gap, 1)}",
        f"candidate {plan.preset}",
        plan.exactness,
    ]
    if plan.order != "captured":
        facts.append(f"operations in another order ({plan.order})")
    console.print(escape(" · ".join(facts)), highlight=False)
    if plan.decisions:
        console.print(_ways(sum_by_way(plan.decisions)))
        _print_decisions(group_decisions(plan.decisions), console, num_rows)
    if plan.variants:
        _print_variants(plan.variants, console, num_rows)
    if plan.alive_at_peak:
        _print_alive(plan, console, num_rows)


def _ways(rows: Sequence[DecisionGroup]) -> Table:
    table = _table("way", "tensors", "of", "released", "added", title="\nWhat it uses")
    for row in rows:
        table.add_row(
            escape(row.way),
            str(row.num_tensors),
            format_bytes(row.num_bytes),
            format_bytes(row.released_bytes),
            format_added(row.added_ms),
        )
    return table


def _print_decisions(rows: Sequence[DecisionGroup], console: Console, num_rows: int) -> None:
    changed = [row for row in rows if row.way != "hold"]
    if not changed:
        return
    _DECISIONS.print(
        [
            (
                format_bytes(row.released_bytes),
                format_added(row.added_ms),
                str(row.num_tensors),
                row.way,
                row.line or "–",
                row.module or "–",
                row.reason,
            )
            for row in changed[:num_rows]
        ],
        console,
        title="\nWhat it does to which lines",
    )
    _print_rest(changed[num_rows:], console)


def _print_rest(rows: Sequence[DecisionGroup], console: Console) -> None:
    if rows:
        released = format_bytes(sum(row.released_bytes for row in rows))
        console.print(
            f"[dim]… and {len(rows)} more, which release {released}[/dim]", highlight=False
        )


def _print_variants(variants: Sequence[tuple[str, str]], console: Console, num_rows: int) -> None:
    console.print("\n[bold]Other formulas in backward[/bold]")
    by_variant: dict[str, list[str]] = {}
    for node, variant in variants:
        by_variant.setdefault(variant, []).append(node)
    for variant, nodes in by_variant.items():
        more = f" … and {len(nodes) - num_rows} more" if len(nodes) > num_rows else ""
        console.print(
            f"  {escape(variant)}: [dim]{escape(', '.join(nodes[:num_rows]))}{more}[/dim]",
            highlight=False,
        )


def _print_alive(plan: Plan, console: Console, num_rows: int) -> None:
    where = f", in {plan.peak_phase}" if plan.peak_phase else ""
    shown, rest = plan.alive_at_peak[:num_rows], plan.alive_at_peak[num_rows:]
    together = format_bytes(sum(tensor.num_bytes for tensor in rest))
    _ALIVE.print(
        [
            (format_bytes(each.num_bytes), _kind_title(each.kind), each.name, each.line or "–")
            for each in shown
        ],
        console,
        title=f"\nAlive at the plan's peak{where}",
        last=(together, f"… and {len(rest)} more", "", "") if rest else None,
    )


def _kind_title(name: str) -> str:
    return next((kind.title for kind in Kind if kind.value == name), name)


def _print_not_planned(report: PlanReport, console: Console, num_rows: int) -> None:
    console.print("\n[bold]Not planned[/bold]")
    if not report.not_planned:
        console.print("  [dim]nothing: the whole step was captured[/dim]")
    for what, why, num_bytes in report.not_planned[:num_rows]:
        size = f" ({format_bytes(num_bytes)})" if num_bytes is not None else ""
        console.print(f"  {escape(what)}{size}: [dim]{escape(why)}[/dim]", highlight=False)
    if len(report.not_planned) > num_rows:
        console.print(f"  [dim]… and {len(report.not_planned) - num_rows} more[/dim]")
