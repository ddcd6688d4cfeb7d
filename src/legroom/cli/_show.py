"""`legroom show`: a saved profile again, as tables or as a page."""

from __future__ import annotations

import sys

import click
from rich.console import Console

from legroom.cli._options import rows_option
from legroom.meter import Profile
from legroom.report import print_profile, write_html


@click.command("show", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--html", "html_path", metavar="FILE", help="Write a page that opens offline.")
@rows_option
@click.argument("file")
def show_command(*, html_path: str | None, rows: int, file: str) -> None:
    """Show a profile that `legroom profile --json FILE` saved.

    \b
    legroom show profile.json
    legroom show profile.json --html page.html
    """
    profile = Profile.load(file)
    console = Console(width=None if sys.stdout.isatty() else 120)
    print_profile(profile, console, num_rows=rows)
    if html_path is not None:
        write_html(profile, html_path)
        console.print(f"wrote {html_path}", highlight=False, style="dim")
