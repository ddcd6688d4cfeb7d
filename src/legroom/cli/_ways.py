"""`legroom ways`: everything that a plan can use."""

from __future__ import annotations

import json
import sys

import click

from legroom.cli._output import open_console
from legroom.report import print_ways, ways_data


@click.command("ways", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def ways_command(*, as_json: bool) -> None:
    """List the ways to give a tensor back, the variants of formulas, and the presets.

    Names of ways and variants go into `legroom plan --with NAME` and `--without NAME`, those of
    presets into `--preset NAME`.
    """
    if as_json:
        json.dump(ways_data(), sys.stdout, indent=1)
        print()
    else:
        print_ways(open_console())
