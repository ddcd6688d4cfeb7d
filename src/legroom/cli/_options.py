"""Options and arguments that several commands share, each written once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import click

from legroom.engine import check_budget, choose_executor
from legroom.plan import PlanOptions, choose_ways, faults_of, faults_of_ways, report_faults
from legroom.ways import Exactness

rows_option = click.option(
    "--rows",
    default=10,
    type=click.IntRange(min=1),
    show_default=True,
    help="Rows in the tables of lines.",
)
json_option = click.option(
    "--json", "json_path", metavar="FILE", help="Write everything as JSON; - is stdout."
)
html_option = click.option(
    "--html", "html_path", metavar="FILE", help="Write a page that opens offline."
)
module_option = click.option(
    "-m", "is_module", is_flag=True, help="SCRIPT is a module, as in `python -m`."
)
script_argument = click.argument("script")
script_arguments = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)

_BUDGETS_IN_WORDS = """\b
--budget 4GiB     The step holds at most so much.
--budget 50%      The step holds at most half of what the plain step holds.
--budget free     The step is as fast as plain, and as small as that allows.
--budget lowest   The step is as small as any plan makes it, however slow.

"""
"""Shown right below the first sentence of a command's help: on its first screen."""

_PLANNING = (
    click.option(
        "--budget",
        metavar="SIZE",
        help="Most that the step may hold at once: 4GiB, 50% of the plain step's peak, free or "
        "lowest.",
    ),
    click.option(
        "--activations",
        metavar="SHARE",
        help="The same, said otherwise: weights, gradients, optimizer state and what the step does "
        "not touch, plus this share of the rest, as 50%.",
    ),
    click.option(
        "--stash",
        metavar="SIZE",
        help="Most that forward may leave for backward: 80MiB, or 25% of what it leaves in the "
        "plain step; beside a budget, or alone.",
    ),
    click.option(
        "--disk",
        metavar="FOLDER",
        help="Let plans hold tensors in a file in this folder, which has no name and is gone when "
        "the program ends; `legroom tiers` says how fast that is.",
    ),
    click.option(
        "--host",
        is_flag=True,
        help="Let plans hold tensors of an accelerator in pinned host memory, copied beside the "
        "computing. Written for CUDA, not tried on it by the authors.",
    ),
    click.option(
        "--with",
        "only",
        metavar="WAY",
        multiple=True,
        help="Use nothing but this way or variant (and hold); may be repeated. `legroom ways` "
        "lists them.",
    ),
    click.option(
        "--without", metavar="WAY", multiple=True, help="Do not use this one; may be repeated."
    ),
    click.option(
        "--exactness",
        default="bitwise",
        show_default=True,
        metavar="NAME",
        help="bitwise: same bits as plain PyTorch; rounding: same mathematics in another order; "
        "lossy: fewer bits, bounded error.",
    ),
    click.option(
        "--preset",
        metavar="NAME",
        help="Follow this recipe of the literature instead of searching, as gist; the budget picks "
        "among its forms. `legroom ways` lists them.",
    ),
    click.option(
        "--effort",
        default="proportional",
        show_default=True,
        metavar="NAME",
        help="proportional: planning takes as long as there is something to gain, within the time "
        "limit; fixed: so much work, whatever the time, so that plans are repeatable.",
    ),
    click.option(
        "--time-limit",
        "time_limit_s",
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="Longest time for all that planning for one budget does; then the best plan so far is "
        "taken.",
    ),
)
_FITTING = (
    click.option(
        "--executor",
        default="eager",
        show_default=True,
        metavar="NAME",
        help="eager: the same kernels as plain PyTorch; inductor: compiled ones, which needs "
        "--exactness rounding.",
    ),
    click.option(
        "--max-gradient-error",
        type=float,
        metavar="SHARE",
        help="With --exactness lossy: how far gradients may be off, as 0.05 of their norm. It is "
        "measured on the first batch, and coarse ways are left out until it is kept.",
    ),
    click.option(
        "--check-every",
        type=int,
        metavar="CALLS",
        help="With --exactness lossy: measure that again after so many calls of the model.",
    ),
    click.option(
        "--leave",
        metavar="NAME",
        multiple=True,
        help="Leave this module as it is, by class or path; may be repeated.",
    ),
    click.option(
        "--on-unplannable",
        type=click.Choice(["plain", "error"]),
        default="plain",
        show_default=True,
        help="What to do with calls that cannot be planned: run them as they are and say so, or "
        "end with an error.",
    ),
)


def planning_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say what to plan; they arrive as one, `planning`.

    The command's help says which budgets there are.
    """
    names = [item.name for item in fields(PlanningChoice)]

    @functools.wraps(command)
    def collected(**given: Any) -> None:
        choice = PlanningChoice(**{name: given.pop(name) for name in names})
        command(planning=choice, **given)

    first, _, rest = (inspect.getdoc(command) or "").partition("\n\n")
    collected.__doc__ = f"{first}\n\n{_BUDGETS_IN_WORDS}{rest}"
    return _with_options(collected, _PLANNING)


def fitting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say how to carry a plan out, as `executor`,
    `max_gradient_error`, `check_every`, `leave` and `on_unplannable`."""
    return _with_options(command, _FITTING)


def faults_of_fitting(planning: PlanningChoice, executor: str) -> list[str]:
    """What is wrong with carrying out a plan so, a sentence each: no budget, no such executor."""
    faults = faults_of(check_budget, planning.budget or planning.activations or planning.stash)
    if not planning.is_exactness_known:
        return faults
    return [*faults, *faults_of(choose_executor, executor, planning.exactness)]


def _with_options(
    command: Callable[..., None], options: tuple[Callable[..., Any], ...]
) -> Callable[..., None]:
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(frozen=True)
class PlanningChoice:
    """What the user said with `planning_options`, as it was written."""

    budget: str | None
    activations: str | None
    stash: str | None
    disk: str | None
    host: bool
    only: tuple[str, ...]
    without: tuple[str, ...]
    exactness: str
    preset: str | None
    effort: str
    time_limit_s: float

    @property
    def is_exactness_known(self) -> bool:
        """Whether there is such an exactness; `options` says if not."""
        return self.exactness in {each.value for each in Exactness}

    def options(
        self,
        *,
        device: str | None = None,
        num_points: int = 0,
        max_gradient_error: float | None = None,
        check_every: int | None = None,
        on_unplannable: str = "plain",
        faults: Iterable[str] = (),
    ) -> PlanOptions:
        """What to plan.

        Raises:
            UsageError: Something is wrong; it says everything that is, `faults` included.
        """
        options = PlanOptions(
            budget=self.budget,
            activations=self.activations,
            stash=self.stash,
            disk=False if self.disk is None else self.disk,
            host=self.host,
            exactness=self.exactness,
            max_gradient_error=max_gradient_error,
            check_every=check_every,
            on_unplannable=on_unplannable,
            preset=self.preset,
            device=device,
            effort=self.effort,
            time_limit_s=self.time_limit_s,
            num_points=num_points,
        )
        named: dict[str, Any] = {
            "only": self.only,
            "without": self.without,
            "exactness": self.exactness,
        }
        report_faults([*options.faults(), *faults_of_ways(**named), *faults])
        options = replace(options, ways=choose_ways(**named), asked=self.only)
        options.check()  # of what was named so, what cannot be used here
        return options
