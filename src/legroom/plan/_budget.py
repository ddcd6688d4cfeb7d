"""The budget of a plan: what people write, and the bytes that it means for a given step.

In goes `"4GiB"`, `"50%"` or a number of bytes; out comes a `Budget`, which becomes bytes once the
plain step's peak and its state are known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import final

from legroom.errors import UsageError
from legroom.units import format_bytes, parse_bytes

_SHARE = re.compile(r"^\s*(-?[0-9]+(?:\.[0-9]+)?)\s*%\s*$")
_BUDGET_FORMS = "a size (4GiB, 500MB), a share of the plain step's peak (50%), free or lowest"
_FREE, _LOWEST = "free", "lowest"
_LEAST_WITHOUT_UNIT = 2**20  # no training step is smaller: the unit was forgotten
_STASH_FORMS = (
    "a size (80MiB), or a share of what the plain step's forward leaves for backward (25%)"
)
_ACTIVATION_FORMS = "a share (50%) of what the step holds beside weights, gradients and optimizer"


@final
@dataclass(frozen=True, slots=True)
class Budget:
    """An upper bound on the peak of a step; exactly one of bytes, share, free and lowest.

    Attributes:
        num_bytes: The bound itself.
        share: Of the plain step's peak, above 0 and at most 1.
        spares_state: Whether the share is of what the step holds beside what stays without it,
            state above all: what stays plus that share of the rest.
        is_free: Whether it is the lowest that a plan reaches with 2 % more time at most.
        is_lowest: Whether it is the lowest that a plan reaches at all.
    """

    num_bytes: int | None = None
    share: float | None = None
    spares_state: bool = False
    is_free: bool = False
    is_lowest: bool = False

    def resolve(self, plain_peak_bytes: int, staying_bytes: int) -> int:
        """The bound in bytes for a step with this plain peak, so much of which stays."""
        if self.share is None:
            assert self.num_bytes is not None, "bug in legroom: a budget that only a planner knows"
            return self.num_bytes
        base = min(staying_bytes, plain_peak_bytes) if self.spares_state else 0
        return base + int(self.share * (plain_peak_bytes - base))

    def __str__(self) -> str:
        if self.is_lowest:
            return "the lowest that a plan reaches"
        if self.is_free:
            return "the lowest that a plan reaches at 2 % more time"
        if self.num_bytes is not None:
            return format_bytes(self.num_bytes)
        share = f"{100 * (self.share or 0):g} %"
        return f"state plus {share} of the rest" if self.spares_state else f"{share} of the peak"


def parse_budget(value: str | int) -> Budget:
    """The budget in `"4GiB"`, `"50%"` (of the plain step's peak), `"free"`, `"lowest"`, or bytes.

    Raises:
        UsageError: It is neither, not more than nothing, more than all, or a text without a unit
            that is less than a MiB.
    """
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in (_FREE, _LOWEST):
        return Budget(is_free=word == _FREE, is_lowest=word == _LOWEST)
    share = _parse_share(value, "budget", _BUDGET_FORMS)
    if share is not None:
        return Budget(share=share)
    return Budget(num_bytes=_parse_size(value, "budget", _BUDGET_FORMS))


def parse_activations(value: str) -> Budget:
    """The budget of state plus a share, `"50%"`, of the rest.

    Raises:
        UsageError: It is not a share above 0 % and up to 100 %.
    """
    share = _parse_share(value, "activations", _ACTIVATION_FORMS)
    if share is None:
        raise UsageError(
            f"activations {value!r} is not a share; write {_ACTIVATION_FORMS}, or give bytes as "
            "the budget"
        )
    return Budget(share=share, spares_state=True)


def parse_stash(value: str | int) -> Budget:
    """The bound in `"80MiB"`, `"25%"` (of what the plain step's forward leaves), or bytes.

    Raises:
        UsageError: It is neither, not more than nothing, or more than all.
    """
    share = _parse_share(value, "stash", _STASH_FORMS)
    return (
        Budget(num_bytes=_parse_size(value, "stash", _STASH_FORMS))
        if share is None
        else Budget(share=share)
    )


def choose_budget(budget: str | int | None, activations: str | None) -> Budget | None:
    """The one budget that was asked for; None if none was.

    Raises:
        UsageError: It is malformed, or both were given.
    """
    if budget is not None and activations is not None:
        raise UsageError(
            f"budget {budget!r} and activations {activations!r} were both given; "
            "they bound the same peak, so give one"
        )
    if budget is not None:
        return parse_budget(budget)
    return None if activations is None else parse_activations(activations)


def _parse_share(value: str | int, what: str, forms: str) -> float | None:
    """The share in a text that ends in %; None for anything else."""
    match = _SHARE.match(value) if isinstance(value, str) else None
    if match is None:
        return None
    percent = float(match.group(1))
    if percent <= 0:
        raise UsageError(f"{what} {value!r} leaves nothing; write {forms}")
    if percent > 100:
        raise UsageError(
            f"{what} {value!r} is more than the plain step needs, so there is nothing to plan; "
            "write at most 100%"
        )
    return percent / 100


def _parse_size(value: str | int, what: str, forms: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise UsageError(f"{what} {value!r} is not a {what}; write {forms}")
    try:
        count = value if isinstance(value, int) else parse_bytes(value)
    except UsageError:
        raise UsageError(f"{what} {value!r} is not a size; write {forms}") from None
    if count <= 0:
        raise UsageError(f"{what} {value!r} leaves nothing; write {forms}")
    if isinstance(value, str) and value.strip()[-1].isdecimal() and count < _LEAST_WITHOUT_UNIT:
        number = value.strip()
        raise UsageError(
            f"{what} {value!r} is {count} bytes; did you mean "
            f"'{number}%', '{number}MiB' or '{number}GiB'?"
            if count <= 100
            else f"{what} {value!r} is {count} bytes; did you mean '{number}MiB'?"
        )
    return count
