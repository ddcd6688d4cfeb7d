"""What does each technique add? legroom on one case with more and more of what it has.

In go a case and options of the contest; out come the contest's rows, each rung in a process of its
own that takes turns with plain. See Note [Rungs].
"""

# Note [Rungs]
# 1. A rung may use all that the rungs below it may, and what it adds. It leaves the rest out by
#    name, so that what is in reserve stays in reserve (legroom.plan, Note [Reserve]).
# 2. Which names a rung adds comes from the registries: a new way finds its rung by itself.
# 3. Fusing operations on the same elements cannot be left out. The first rung is that alone, with
#    everything held that backward reads.
# 4. Each rung is planned for two budgets. `free` is the lowest peak at 2 % more time, `lowest` the
#    lowest of all. Those of one budget are in the same heat, where the machine's memory allows it.
# 5. The rungs of a case share legroom's cache, so that all are planned with the same times of
#    operations: a row differs from the one above by what it adds, not by what was timed anew.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.contest import ContestOptions, Entry, Heat
from benchmarks.contest._heats import OURS, chunks
from benchmarks.peers import Setting
from legroom import variants, ways
from legroom.plan import allowed_ways

BUDGETS = ("free", "lowest")
MAX_GRADIENT_ERROR = 0.05
"""Of lossy plans: without a bound the floor would be reached with gradients of no use."""
CASES = ("gpt2", "resnet50")


@dataclass(frozen=True)
class Rung:
    """What is added to the rung below.

    Attributes:
        adds: Names of ways and variants.
        options: Of `legroom.fit`, beside those below and the names that are left out.
    """

    title: str
    adds: tuple[str, ...]
    options: tuple[tuple[str, Any], ...] = ()


def rungs() -> tuple[Rung, ...]:
    """From the lowest; see Note [Rungs]."""
    bitwise, rounding, lossy = map(allowed_ways, ("bitwise", "rounding", "lossy"))
    again = (ways.Remake.name, ways.Replay.name)
    formulas = tuple(name for name in bitwise if name in variants.names())
    known = (ways.Hold.name, *again, *formulas)
    disk = ways.Disk.name
    return (
        Rung("fused operations", (), (("exactness", "bitwise"), ("executor", "eager"))),
        Rung("running again", again),
        Rung("other formulas for backward", formulas),
        Rung("fewer bits, without loss", tuple(name for name in bitwise if name not in known)),
        Rung("the disk", (disk,), ((disk, True),)),
        Rung("other rounding", _without(rounding, bitwise), (("exactness", "rounding"),)),
        Rung(
            f"fewer bits, gradients off by {MAX_GRADIENT_ERROR:.0%} at most",
            _without(lossy, rounding),
            (("exactness", "lossy"), ("max_gradient_error", MAX_GRADIENT_ERROR)),
        ),
    )


def settings(budget: str) -> Iterator[tuple[Rung, Setting]]:
    """Each rung with the options of `legroom.fit` that it has at a budget."""
    every, options = rungs(), {}
    for number, rung in enumerate(every):
        options |= dict(rung.options)
        later = {name for above in every[number + 1 :] for name in above.adds}
        left_out = [name for name in allowed_ways(options["exactness"]) if name in later]
        yield rung, {"budget": budget, **options, **({"without": left_out} if left_out else {})}


def heats(options: ContestOptions) -> list[Heat]:
    """A heat for each budget, or several where too many would be alive at once."""
    room = Heat("", (), None).room(options.most_live)
    return [
        Heat(f"ladder {budget} {number}", tuple(part), None)
        for budget in BUDGETS
        for number, part in enumerate(chunks(_entries(budget), room), start=1)
    ]


def _entries(budget: str) -> list[Entry]:
    return [Entry(OURS, setting, title=rung.title) for rung, setting in settings(budget)]


def _without(names: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in others)
