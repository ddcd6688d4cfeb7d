"""`legroom ways`: everything that a plan can use."""

from __future__ import annotations

import json
import sys

import click

from legroom.cli._output import open_console
from legroom.report import print_way, print_ways, way_data, ways_data


@click.command(
    "ways",
    short_help="everything that a plan can use; NAME: one in full",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def ways_command(*, names: tuple[str, ...], as_json: bool) -> None:
    """List the ways to give a tensor back, the variants of formulas, and the presets.

    With a NAME, or several: when to use it, what it costs, how to switch it on, what it does not
    combine with. Names of ways and variants go into `legroom plan --with NAME` and `--without
    NAME`, those of presets into `--preset NAME`.

    \b
    legroom ways
    legroom ways bits gist
    """
    if as_json:
        data = [way_data(name) for name in names] if names else ways_data()
        json.dump(data, sys.stdout, indent=1)
        print()
        return
    console = open_console()
    if not names:
        print_ways(console)
    for number, name in enumerate(names):
        if number:
            console.print()
        print_way(name, console)
