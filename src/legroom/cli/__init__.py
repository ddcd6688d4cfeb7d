"""The command line: one file per command, listed below.

`main` prints `legroom: <message>` to stderr for every error that legroom raises on purpose, without
a traceback, and exits with the code of the error's class.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from legroom._version import __version__
from legroom.cli._plan import plan_command
from legroom.cli._profile import profile_command
from legroom.cli._run import run_command
from legroom.cli._show import show_command
from legroom.cli._tiers import tiers_command
from legroom.cli._verify import verify_command
from legroom.cli._ways import ways_command
from legroom.errors import LegroomError, ScriptError, ScriptInterruptedError

_COMMANDS = (  # in the order in which somebody comes to need them
    profile_command,
    plan_command,
    run_command,
    verify_command,
    ways_command,
    tiers_command,
    show_command,
)


class _Group(click.Group):
    """Lists commands in the order of their use, and ends with legroom's line and code on Ctrl-C.

    click would sort them by name, and end with `Aborted!` and 1.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise ScriptInterruptedError(
                f"interrupted during legroom {ctx.invoked_subcommand}"
            ) from None


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="legroom %(version)s")
def _group() -> None:
    """Make PyTorch training fit: see where a step's memory and time go, and what would fit.

    \b
    legroom profile train.py --batch-size 8
    legroom plan --budget 4GiB train.py --batch-size 8
    legroom run --budget 4GiB train.py --batch-size 8
    legroom verify --budget 4GiB train.py --batch-size 8

    Options of legroom go before the script, the script's own after it.
    """


for _command in _COMMANDS:
    _group.add_command(_command)


def main() -> None:
    """Run the command line and exit."""
    try:
        _group(prog_name="legroom", standalone_mode=True)
    except LegroomError as error:
        if isinstance(error, ScriptError) and error.traceback:
            print(error.traceback, file=sys.stderr, end="")
        print(f"legroom: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


__all__ = ["main"]
