"""`legroom run`: the unmodified script, with every model that it trains within the budget."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import click
from rich.console import Console

from legroom.capture import Script
from legroom.cli._options import (
    PlanningChoice,
    faults_of_fitting,
    fitting_options,
    json_option,
    module_option,
    planning_options,
    script_argument,
    script_arguments,
)
from legroom.cli._output import Output, open_console
from legroom.cli._progress import OnProgress, progress_on_stderr
from legroom.engine import RunEvent, ScriptRun, fit_script, keep_freed_memory
from legroom.report import print_run_measured, print_run_plan


@click.command(
    "run",
    short_help="the unmodified script, within a budget",
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
)
@module_option
@planning_options
@fitting_options
@click.option(
    "--limit",
    is_flag=True,
    help="Limit the process to its size before the model plus the budget: an overrun is an error "
    "and not a swapped machine.",
)
@click.option(
    "--keep-freed",
    is_flag=True,
    help="Have the process keep the memory that it frees: on a CPU steps are shorter, and the "
    "process stays as large as it was at its peak.",
)
@json_option
@script_argument
@script_arguments
def run_command(
    *,
    is_module: bool,
    planning: PlanningChoice,
    executor: str,
    max_gradient_error: float | None,
    check_every: int | None,
    on_unplannable: str,
    leave: tuple[str, ...],
    limit: bool,
    keep_freed: bool,
    json_path: str | None,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a script, unmodified, with its training steps within a budget.

    Runs SCRIPT to its end. Every model that it trains is planned at its first call, before anything
    of the step is allocated; the plan is shown, and after two steps what was measured beside it.
    What the script prints, writes and returns is its own. Options of legroom go before SCRIPT, the
    script's own after it.

    \b
    legroom run --budget 4GiB train.py --batch-size 8
    legroom run --activations 50% --json run.json -m mypackage.train
    legroom run --budget 4GiB --limit train.py         an overrun is an error
    legroom run --budget 50% --leave Critic gan.py     the critic stays plain
    """
    faults = faults_of_fitting(planning, executor)
    if limit and keep_freed:
        faults.append("--limit counts what the process holds, --keep-freed keeps all: choose one")
    options = planning.options(
        max_gradient_error=max_gradient_error,
        check_every=check_every,
        on_unplannable=on_unplannable,
        faults=faults,
    )
    target = Script(script, arguments, is_module=is_module)
    target.check()
    output = Output.to(json_path, None, num_rows=10)
    terminal = _Terminal(open_console(on_stderr=True))
    if keep_freed:
        print(f"legroom: {keep_freed_memory()}", file=sys.stderr)
    with output.stdout_kept_clean(), terminal.kept_tidy():
        run = fit_script(
            target,
            options,
            executor=executor,
            limit=limit,
            leave=leave,
            on_progress=terminal.on_progress,
            on_event=terminal.on_event,
        )
    if run.report is not None and output.json_path is not None:
        output.deliver_record(run.report, lambda console: None, on_stderr=True)
    _end(run)


def _end(run: ScriptRun) -> None:
    if run.exit_code is not None:
        if run.error is not None:
            print(f"legroom: {run.error}", file=sys.stderr)
        sys.exit(run.exit_code)
    if run.error is not None:
        raise run.error


class _Terminal:
    """stderr while the script owns the terminal: progress while planning, otherwise a few lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = contextlib.ExitStack()
        self._update: OnProgress | None = None

    @contextlib.contextmanager
    def kept_tidy(self) -> Iterator[None]:
        """No bar stays behind."""
        with contextlib.closing(self._bar):
            yield

    def on_progress(self, stage: str, done: int, total: int) -> None:
        """Show how far planning is."""
        if self._update is None:
            self._update = self._bar.enter_context(progress_on_stderr())
        self._update(stage, done, total)

    def on_event(self, event: RunEvent) -> None:
        """Show a plan, a measurement or a note."""
        self._bar.close()
        self._update = None
        sys.stdout.flush()
        if event.report is None:
            print(f"legroom: {event.text}", file=sys.stderr)
        elif event.what == "planned":
            print_run_plan(event.report, self._console)
        else:
            print_run_measured(event.report, self._console)
