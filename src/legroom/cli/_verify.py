"""`legroom verify`: the same training steps plain and fitted, compared."""

from __future__ import annotations

import re
import sys

import click

from legroom.capture import Script
from legroom.cli._options import (
    PlanningChoice,
    faults_of_fitting,
    fitting_options,
    json_option,
    module_option,
    planning_options,
    rows_option,
    script_argument,
    script_arguments,
)
from legroom.cli._output import Output
from legroom.cli._progress import progress_on_stderr
from legroom.cli._vary import set_argument
from legroom.engine import check_steps, verify_script
from legroom.errors import UsageError
from legroom.plan import PlanOptions, faults_of
from legroom.report import print_verification

_SETTING = re.compile(r"^\s*([^=\s]+)\s*=\s*(\S+)\s*$")
_DIFFERENT = 1


@click.command(
    "verify",
    short_help="the same steps plain and fitted, compared bit for bit",
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
)
@module_option
@planning_options
@fitting_options
@click.option("--steps", default=3, show_default=True, help="Training steps to compare.")
@click.option(
    "--tolerance",
    type=float,
    metavar="SHARE",
    help="With --exactness rounding or lossy: the relative error that counts as equal, instead of "
    "0.001 or 0.1. Under autocast to bfloat16, 0.01 is rounding.",
)
@click.option(
    "--smaller",
    metavar="ARG=VALUE",
    help="Set an argument of the script in both runs, where the plain step does not fit: "
    "batch-size=2.",
)
@json_option
@rows_option
@script_argument
@script_arguments
def verify_command(
    *,
    is_module: bool,
    planning: PlanningChoice,
    executor: str,
    max_gradient_error: float | None,
    check_every: int | None,
    on_unplannable: str,
    leave: tuple[str, ...],
    steps: int,
    tolerance: float | None,
    smaller: str | None,
    json_path: str | None,
    rows: int,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Say whether a script trains the same within a budget: bit for bit, unless asked otherwise.

    Runs SCRIPT twice, plain and fitted, each in a process of its own and from the same seeds, for a
    few steps. Compares every loss, every gradient, every parameter and buffer, the optimizer's
    state and the random numbers, and names the first tensor that differs. What the script prints
    is not shown. Options of legroom go before SCRIPT, the script's own after it.

    \b
    legroom verify --budget 50% train.py --batch-size 8
    legroom verify --activations 50% --steps 5 --json verify.json -m mypackage.train
    legroom verify --budget 50% --smaller batch-size=2 train.py    where plain does not fit
    legroom verify --budget 50% --exactness rounding --executor inductor train.py

    Exit code: 0 equal, 1 different or failed, 2 misuse or not repeatable.
    """
    faults = [*faults_of_fitting(planning, executor), *faults_of(check_steps, steps)]
    faults += faults_of(_parse_setting, smaller) if smaller is not None else []
    options = planning.options(
        max_gradient_error=max_gradient_error,
        check_every=check_every,
        on_unplannable=on_unplannable,
        faults=faults,
    )
    target = Script(script, arguments, is_module=is_module)
    notes: tuple[str, ...] = ()
    if smaller is not None:
        name, value = _parse_setting(smaller)
        target = set_argument(target, name, value)
        notes = (_note(name, value, options),)
    target.check()
    output = Output.to(json_path, None, num_rows=rows)
    with progress_on_stderr() as on_progress:
        result = verify_script(
            target,
            options,
            executor=executor,
            steps=steps,
            tolerance=tolerance,
            leave=leave,
            notes=notes,
            on_progress=on_progress,
        )
    output.deliver_record(
        result, lambda console: print_verification(result, console, num_rows=rows)
    )
    if not result.equal:
        sys.exit(_DIFFERENT)


def _parse_setting(text: str) -> tuple[str, str]:
    match = _SETTING.match(text)
    if match is None:
        raise UsageError(
            f"--smaller {text!r} is not understood; write ARG=VALUE, for example batch-size=2"
        )
    return match[1], match[2]


def _note(name: str, value: str, options: PlanOptions) -> str:
    text = f"a smaller step was compared, with {name} {value}"
    budget = options.chosen_budget
    if budget is not None and budget.num_bytes is not None:
        text += "; its budget is the same number of bytes, so less of it had to be given back"
    return text
