"""`legroom tiers`: where bytes can live besides the device, and how fast that is here."""

from __future__ import annotations

import json
import sys

import click

from legroom import tiers
from legroom.cli._output import open_console
from legroom.cli._progress import OnProgress, progress_on_stderr
from legroom.errors import TierError
from legroom.meter import tier_speed
from legroom.report import TierRow, print_tiers, tiers_data


@click.command(
    "tiers",
    short_help="where bytes can be moved, and how fast that is here",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.option("--fresh", is_flag=True, help="Measure again what was measured before.")
@click.option(
    "--folder",
    metavar="FOLDER",
    help="Where the disk tier's file lies; else LEGROOM_DISK, else that for temporary files.",
)
def tiers_command(*, as_json: bool, fresh: bool, folder: str | None) -> None:
    """List the tiers, and how fast bytes get there and back on this machine.

    What is measured takes a few seconds and is kept for the next time.
    """
    with progress_on_stderr() as on_progress:
        rows = [_row(name, folder, fresh, on_progress) for name in tiers.names()]
    if as_json:
        json.dump(tiers_data(rows), sys.stdout, indent=1)
        print()
    else:
        print_tiers(rows, open_console())


def _row(name: str, folder: str | None, fresh: bool, on_progress: OnProgress) -> TierRow:
    """A tier that cannot be used is a row that says why; the folder's, asked for, is an error."""
    kind = tiers.get(name)
    try:
        tier = tiers.Disk.open(folder) if kind is tiers.Disk and folder else kind.open()
    except TierError as error:
        if folder and kind is tiers.Disk:
            raise
        return TierRow(kind.name, kind.summary, {}, reason=str(error).splitlines()[0])
    with tier.closing():
        return TierRow(
            name=kind.name,
            summary=kind.summary,
            description=tier.describe(),
            free_bytes=tier.free_bytes(),
            speed=tier_speed(tier, fresh=fresh, on_progress=on_progress),
        )
