"""Who won: legroom's row against the row of a peer whose peak it was given.

In go the two rows as the result file has them; out comes a verdict. See Note [Verdict].
"""

# Note [Verdict]
# 1. First memory: a measured peak above the peer's is a loss, whatever the time; where the peer is
#    legroom itself with less to choose from, one above the budget of both. On lossy terms so
#    are gradients that are further off than the peer's, by more than a tenth: some round at random.
# 2. Then time: the ratio legroom / peer within each round, of which there is one for each step. The
#    median of the ratios is the figure; its interval is made of two of the ratios, the ones that
#    enclose the true median with at least 95 % (for fewer than six rounds: all of them). It needs
#    no assumption on how times are spread.
# 3. Win: the whole interval is below 1. Loss: the whole interval is above 1. Otherwise a tie; and
#    also if the figure is within `SAME_TIME` of 1, or within what plain in two processes of the
#    same heat differs by: two processes of the same contestant may differ by that much for good,
#    which no number of rounds shows.
# 4. Processor time is what counts, since other programs on the machine take none of it and all
#    have the same number of threads. Where either holds tensors on a disk, the wall's clock counts,
#    since a process that waits uses no processor.

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.contest._heats import OURS

COVERAGE = 0.95
SAME_ERROR = 1.1
SAME_TIME = 0.015
"""As a share; chosen before any heat with controls was run."""


class Outcome(enum.Enum):
    """How legroom did."""

    WIN = "win"
    TIE = "tie"
    LOSS = "loss"


@dataclass(frozen=True)
class Verdict:
    """Legroom against one peer's row.

    Attributes:
        ratio: Median of legroom's time by the peer's; None if there is none to compare.
        low: Lower end of the interval of that median.
        high: Upper end.
        why: What decided, where it was not time.
    """

    outcome: Outcome
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    why: str = ""


def judge(ours: dict[str, Any], theirs: dict[str, Any], *, same_time: float = SAME_TIME) -> Verdict:
    """Legroom's row against a peer's, which trained. See Note [Verdict].

    Args:
        same_time: Times that differ by this share at most are the same.
    """
    ratios = ratios_of(ours, theirs) if ours.get("status") == "ready" else []
    why = _why_lost(ours, theirs, ratios)
    if not ratios:
        return Verdict(Outcome.LOSS, why=why)
    low, high = interval(ratios)
    ratio = statistics.median(ratios)
    if why:
        outcome = Outcome.LOSS
    elif low <= 1 <= high or abs(ratio - 1) <= same_time:
        outcome = Outcome.TIE
    else:
        outcome = Outcome.WIN if high < 1 else Outcome.LOSS
    return Verdict(outcome, ratio, low, high, why)


def _why_lost(ours: dict[str, Any], theirs: dict[str, Any], ratios: list[float]) -> str:
    """What is a loss whatever the time; empty if nothing is. See Note [Verdict], rule 1."""
    status = ours.get("status")
    if status == "below floor":
        return f"cannot go below {_mib(ours['floor_bytes'])}"
    if status != "ready":
        return f"{status}: {ours.get('why', '')}"
    if not ratios:
        return "no times"
    above_bytes = ours["peak_bytes"] - max(theirs["peak_bytes"], _budget_bytes(theirs))
    if above_bytes > 0:
        return f"peak {_mib(above_bytes)} above"
    return _why_coarser(ours, theirs)


def _budget_bytes(row: dict[str, Any]) -> int:
    budget = row.get("setting", {}).get("budget")
    return budget if row.get("peer") == OURS and isinstance(budget, int) else 0


def _why_coarser(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Of lossy rows: gradients that are further off than the peer's, or cannot be compared."""
    if ours.get("setting", {}).get("exactness") != "lossy":
        return ""
    if not ours.get("num_compared", 1):
        return "plain could not run: nothing to compare gradients with"
    mine, other = (row.get("gradient_off", 0.0) for row in (ours, theirs))
    return f"gradients off by {mine:.1e}, its by {other:.1e}" if mine > SAME_ERROR * other else ""


def ratios_of(ours: dict[str, Any], theirs: dict[str, Any], clock: str = "") -> list[float]:
    """Legroom's time by the peer's, step by step; by this clock, if one is named."""
    clock = clock or clock_of(ours, theirs)
    return [mine / other for mine, other in zip(ours[clock], theirs[clock], strict=False)]


def clock_of(*rows: dict[str, Any]) -> str:
    """Which times count. See Note [Verdict], rule 4."""
    ways = [way for row in rows for way in row.get("report", {}).get("ways", {})]
    moves = any(way.endswith("disk") for way in ways)  # packed there: `bits on disk`
    return "wall_ms" if moves else "cpu_ms"


def interval(values: Sequence[float], coverage: float = COVERAGE) -> tuple[float, float]:
    """Two of the values that enclose the median of what they were drawn from.

    With `skipped` values left out at either end, the median is missed at one end if at most that
    many values are on its side of it: P(Binomial(n, 1/2) <= skipped).
    """
    ordered, count = sorted(values), len(values)
    skipped, missed = 0, 1 / 2**count
    while skipped + 1 <= (count - 1) // 2:
        missed += math.comb(count, skipped + 1) / 2**count
        if missed > (1 - coverage) / 2:
            break
        skipped += 1
    return ordered[skipped], ordered[count - 1 - skipped]


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
