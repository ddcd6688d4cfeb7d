"""`legroom show`: a saved profile or plan again, as tables or as a page."""

from __future__ import annotations

import click

from legroom.cli._options import html_option, rows_option
from legroom.cli._output import Output
from legroom.report import load_report


@click.command("show", context_settings={"help_option_names": ["-h", "--help"]})
@html_option
@rows_option
@click.argument("file")
def show_command(*, html_path: str | None, rows: int, file: str) -> None:
    """Show what `legroom profile --json FILE` or `legroom plan --json FILE` saved.

    \b
    legroom show profile.json
    legroom show plan.json --html page.html
    """
    result = load_report(file)
    Output.to(None, html_path, num_rows=rows).deliver(result)
