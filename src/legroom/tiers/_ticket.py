"""Tickets: tensors whose storage keeps a slot of a tier; see Note [Tickets].

In goes a claim on a slot; out comes a tensor with the slot's number, which holds the claim.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from typing import final

import torch

from legroom.errors import TierError

_NUM_BYTES = 8
_numbers = itertools.count(1)

_thread = threading.local()


@final
class Claim:
    """Held by all tickets of a slot; when the last of them goes, the slot does.

    Args:
        release: Called with the slot's number, in whatever thread drops the last ticket.

    Attributes:
        number: The slot's, unique in the process.
    """

    __slots__ = ("__weakref__", "_release", "number")

    def __init__(self, release: Callable[[int], None]) -> None:
        self.number, self._release = next(_numbers), release  # both, or neither with Ctrl-C

    def __del__(self) -> None:
        release = getattr(self, "_release", None)
        if release is not None:
            release(self.number)


@final
class _Buffer(bytearray):
    """The memory of one ticket; PyTorch's storage holds it, and it holds the claim."""

    claim: Claim


def new_ticket(claim: Claim) -> torch.Tensor:
    """A ticket with a storage of its own."""
    buffer = _Buffer(claim.number.to_bytes(_NUM_BYTES, "little"))
    buffer.claim = claim
    return torch.frombuffer(buffer, dtype=torch.int64)


def number_of(ticket: torch.Tensor) -> int:
    """The slot that a ticket stands for."""
    return int(ticket.item())


def claim_of(reference: weakref.ref[Claim], *, tier: str) -> Claim:
    """The claim that the tickets of a slot hold.

    Raises:
        TierError: None of them is left; what was given is a copy of one.
    """
    claim = reference()
    if claim is None:
        raise TierError(
            f"a ticket of tier {tier!r} was copied, and the last real one is gone.\n"
            "  try: keep the tensor that `put`, `settle` or `fetch` returned, or a view of it"
        )
    return claim


def mark_own_thread() -> None:
    """This thread belongs to a tier: it releases nothing. See Note [Tickets], rule 4."""
    _thread.is_own = True


def is_own_thread() -> bool:
    """Whether this thread belongs to a tier."""
    return getattr(_thread, "is_own", False)
