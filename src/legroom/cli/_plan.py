"""`legroom plan`: what would fit, and what it would cost, before training."""

from __future__ import annotations

from dataclasses import replace

import click

from legroom.capture import Script
from legroom.cli._options import (
    PlanningChoice,
    html_option,
    json_option,
    module_option,
    planning_options,
    rows_option,
    script_argument,
    script_arguments,
)
from legroom.cli._output import Output
from legroom.cli._progress import OnProgress, progress_on_stderr
from legroom.cli._vary import Variation, parse_variation, sweep
from legroom.errors import UsageError
from legroom.plan import PlanOptions, PlanReport, faults_of, largest_that_fits, parse_budget


@click.command(
    "plan",
    short_help="what would fit, at what cost, before training",
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
)
@module_option
@planning_options
@click.option(
    "--device",
    metavar="TEXT",
    help='Plan for another device: RTX4090, or "24GiB, 100 GB/s to host". [default: in use]',
)
@click.option(
    "--points",
    "num_points",
    default=10,
    show_default=True,
    metavar="N",
    help="Budgets on the frontier; 0 for none.",
)
@click.option(
    "--vary",
    metavar="ARG=LOW:HIGH",
    help="Find the largest value of an argument of the script that fits the budget: "
    "batch-size=8:256, or batch-size=8:256:8 in steps of 8.",
)
@json_option
@html_option
@rows_option
@script_argument
@script_arguments
def plan_command(
    *,
    is_module: bool,
    planning: PlanningChoice,
    device: str | None,
    num_points: int,
    vary: str | None,
    json_path: str | None,
    html_path: str | None,
    rows: int,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Say into which budget a script's training step would fit, and what that would cost.

    Runs SCRIPT unchanged up to its training step, captures the step without allocating its
    activations, plans it, and ends the script: nothing is trained. Without a budget it shows the
    whole frontier, with one also what the plan does to which lines. Options of legroom go before
    SCRIPT, the script's own after it.

    \b
    legroom plan train.py --batch-size 8               every budget and its price
    legroom plan --budget 4GiB train.py                one of them, line by line
    legroom plan --activations 50% --html page.html train.py
    legroom plan --without replay --time-limit 5 -m mypackage.train
    legroom plan --budget 8GiB --vary batch-size=8:256 train.py
    """
    options = planning.options(
        device=device, num_points=num_points, faults=faults_of(_check_vary, vary, planning.budget)
    )
    target = Script(script, arguments, is_module=is_module)
    target.check()
    output = Output.to(json_path, html_path, num_rows=rows)
    with progress_on_stderr() as on_progress, output.stdout_kept_clean():
        if vary is None:
            report = _plan(target, options, on_progress)
        else:
            report = _plan_largest(target, options, parse_variation(vary), on_progress)
    output.deliver(report)


def _check_vary(vary: str | None, budget: str | None) -> None:
    if vary is None:
        return
    parse_variation(vary)
    if budget is None or parse_budget(budget).num_bytes is None:
        raise UsageError(
            f"--vary {vary!r} needs a budget in bytes to fit into, got {budget!r}; "
            "add for example --budget 8GiB"
        )


def _plan(script: Script, options: PlanOptions, on_progress: OnProgress) -> PlanReport:
    # The planner and what it stands on are imported when something is planned.
    from legroom.plan import plan_script

    return plan_script(script, options, on_progress=on_progress)


def _plan_largest(
    script: Script, options: PlanOptions, variation: Variation, on_progress: OnProgress
) -> PlanReport:
    """The plan for the largest value that fits; for the smallest, whose error says why, if none."""
    points = sweep(script, options, variation, on_progress)
    best = largest_that_fits(points)
    value = variation.low if best is None else best.value
    report = _plan(variation.apply(script, value), options, on_progress)
    added_ms = None if report.chosen is None else report.chosen.added_ms
    tried = tuple(
        replace(point, added_ms=added_ms) if point.value == value else point for point in points
    )
    return replace(report, sweep=tried, swept_argument=variation.name)
