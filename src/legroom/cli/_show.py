"""`legroom show`: what a command saved, again, as tables or as a page."""

from __future__ import annotations

import click

from legroom.cli._options import html_option, rows_option
from legroom.cli._output import Output, open_console
from legroom.engine import RunReport, Verification
from legroom.errors import UsageError
from legroom.report import load_report, print_report


@click.command(
    "show",
    short_help="what a command saved with --json, again",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@html_option
@rows_option
@click.argument("file")
def show_command(*, html_path: str | None, rows: int, file: str) -> None:
    """Show what `--json FILE` of profile, plan, run or verify saved.

    \b
    legroom show profile.json
    legroom show plan.json --html page.html
    legroom show run.json
    """
    result = load_report(file)
    if not isinstance(result, RunReport | Verification):
        Output.to(None, html_path, num_rows=rows).deliver(result)
        return
    if html_path is not None:
        raise UsageError("there is a page of profiles and plans only; leave --html out")
    print_report(result, open_console(), num_rows=rows)
