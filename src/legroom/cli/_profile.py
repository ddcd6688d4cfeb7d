"""`legroom profile`: runs a script, shows where its training step's memory and time go."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console

from legroom.capture import Script
from legroom.cli._options import rows_option
from legroom.cli._progress import progress_on_stderr
from legroom.errors import OutputError, UsageError
from legroom.meter import Profile, SessionOptions, profile_script
from legroom.report import print_profile, write_html


@click.command(
    "profile",
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module, as in `python -m`.")
@click.option("--steps", default=1, show_default=True, help="Training steps to record.")
@click.option(
    "--warmup",
    default=2,
    show_default=True,
    help="Steps to leave alone first; the first one creates the optimizer's state. With 0 the "
    "very first step is recorded: use that when the script runs out of memory at once.",
)
@click.option("--json", "json_path", metavar="FILE", help="Write everything as JSON; - is stdout.")
@click.option("--html", "html_path", metavar="FILE", help="Write a page that opens offline.")
@click.option(
    "--continue", "runs_to_end", is_flag=True, help="Let the script finish after recording."
)
@click.option(
    "--device", metavar="NAME", help="Whose memory to account for: cpu, cuda:0. [default: in use]"
)
@rows_option
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def profile_command(
    *,
    is_module: bool,
    steps: int,
    warmup: int,
    json_path: str | None,
    html_path: str | None,
    runs_to_end: bool,
    device: str | None,
    rows: int,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Show where the memory and the time of a script's training step go.

    Runs SCRIPT unchanged, finds its training steps by itself, leaves the first ones alone, records
    the next, and ends the script. Options of legroom go before SCRIPT, the script's own after it.

    \b
    legroom profile train.py --batch-size 8
    legroom profile --html page.html --json profile.json train.py
    legroom profile -m mypackage.train --config small.yaml
    """
    target = Script(script, arguments, is_module=is_module)
    target.check()
    options = SessionOptions(num_steps=steps, num_warmup=warmup, device=_checked(device))
    # The script may change the working folder.
    json_path, html_path = _absolute(json_path), _absolute(html_path)
    for path in (json_path, html_path):
        if path not in (None, "-"):
            check_writable(str(path))
    # With the profile on stdout, what the script prints must not be there too.
    quiet = contextlib.redirect_stdout(sys.stderr) if json_path == "-" else contextlib.nullcontext()
    with progress_on_stderr() as on_progress, quiet:
        result = profile_script(target, options, runs_to_end=runs_to_end, on_progress=on_progress)
    if result.traceback:
        print(result.traceback, file=sys.stderr, end="")
    if result.profile is not None:
        _deliver(result.profile, json_path, html_path, rows)
    if result.error is not None:
        raise result.error


def _deliver(profile: Profile, json_path: str | None, html_path: str | None, num_rows: int) -> None:
    """Save the files, then print: a terminal that is gone must not cost a measurement."""
    is_piped = json_path == "-"
    saved = []
    if json_path is not None and not is_piped:
        saved.append(_save(profile.save, json_path))
    if html_path is not None:
        saved.append(_save(lambda path: write_html(profile, path), html_path))
    console = Console(stderr=is_piped, width=None if sys.stdout.isatty() else 120)
    print_profile(profile, console, num_rows=num_rows)
    for error in saved:
        if error is not None:
            raise error
    for path in (json_path, html_path):
        if path is not None and path != "-":
            console.print(f"wrote {path}", highlight=False, style="dim")
    if is_piped:
        json.dump(profile.to_json(), sys.stdout)
        print()


def _save(write: Callable[[str], None], path: str) -> OutputError | None:
    """Write a file; if that fails now, write it where there is room, and say so."""
    try:
        write(path)
    except OutputError as error:
        refuge = str(Path(tempfile.mkdtemp(prefix="legroom-")) / Path(path).name)
        write(refuge)
        return OutputError(f"{error}; it is saved as {refuge!r} instead")
    return None


def check_writable(path: str) -> None:
    """Raise `OutputError` now rather than after a long run if the file cannot be written."""
    target = Path(path)
    existed = target.exists()
    try:
        with open(target, "a"):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot write {path!r}: {error.strerror or error}; "
            "name a file in a folder that exists and that you may write to"
        ) from error
    if not existed:
        with contextlib.suppress(OSError):
            target.unlink()


def _checked(device: str | None) -> str | None:
    if device is None:
        return None
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise UsageError(f"{device!r} is not a device; write cpu or cuda:0") from None
    if kind not in ("cpu", "cuda"):
        raise UsageError(f"device {device!r} cannot be accounted for yet; write cpu or cuda:0")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {device!r} was asked for, but this PyTorch sees no CUDA device")
    return device


def _absolute(path: str | None) -> str | None:
    return path if path is None or path == "-" else os.path.abspath(path)
