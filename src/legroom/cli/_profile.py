"""`legroom profile`: runs a script, shows where its training step's memory and time go."""

from __future__ import annotations

import sys

import click

from legroom.capture import Script
from legroom.cli._options import (
    html_option,
    json_option,
    module_option,
    rows_option,
    script_argument,
    script_arguments,
)
from legroom.cli._output import Output
from legroom.cli._progress import progress_on_stderr
from legroom.errors import UsageError
from legroom.meter import SessionOptions, profile_script


@click.command(
    "profile",
    short_help="where a training step's memory and time go",
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
)
@module_option
@click.option("--steps", default=1, show_default=True, help="Training steps to record.")
@click.option(
    "--warmup",
    default=2,
    show_default=True,
    help="Steps to leave alone first; the first one creates the optimizer's state. With 0 the "
    "very first step is recorded: use that when the script runs out of memory at once.",
)
@json_option
@html_option
@click.option(
    "--continue", "runs_to_end", is_flag=True, help="Let the script finish after recording."
)
@click.option(
    "--device", metavar="NAME", help="Whose memory to account for: cpu, cuda:0. [default: in use]"
)
@rows_option
@script_argument
@script_arguments
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
    output = Output.to(json_path, html_path, num_rows=rows)
    with progress_on_stderr() as on_progress, output.stdout_kept_clean():
        result = profile_script(target, options, runs_to_end=runs_to_end, on_progress=on_progress)
    if result.traceback:
        print(result.traceback, file=sys.stderr, end="")
    if result.profile is not None:
        output.deliver(result.profile)
    if result.error is not None:
        raise result.error


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
