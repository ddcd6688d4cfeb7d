"""The slots of a tier: which tensor each is for, and what happens when its last ticket is gone.

In goes a ticket; out comes its slot, or an error that says whose it is not. How bytes get there and
back is the tier's own. See Note [Tickets] and, for Ctrl-C, Note [Slots].
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, final

import torch

from legroom.errors import TierError, UsageError
from legroom.tiers._layout import Layout, is_dense, named
from legroom.tiers._ticket import Claim, claim_of, number_of
from legroom.tiers._tier import TierUse


@dataclass(slots=True, eq=False)
class AbstractSlot(abc.ABC):
    """What every tier knows of a tensor that it holds."""

    claim: weakref.ref[Claim]
    label: str
    layout: Layout
    device: torch.device

    @property
    @abc.abstractmethod
    def num_in_memory(self) -> int:
        """How often its bytes are in memory, on their way out or in."""


SlotT = TypeVar("SlotT", bound=AbstractSlot)


@final
class Slots(dict[int, SlotT], Generic[SlotT]):
    """Slots by their numbers, and the numbers of those whose last ticket is gone.

    Args:
        tier: Name of the tier, for messages.
        where: What else tells it from others of its name; empty for nothing.
    """

    def __init__(self, tier: str, where: str = "") -> None:
        super().__init__()
        self._tier, self._where = tier, where
        self._released: dict[int, None] = {}

    def find(self, ticket: torch.Tensor) -> tuple[int, SlotT, Claim]:
        """The slot that a ticket stands for: its number, itself, and the claim on it.

        Raises:
            TierError: It is none of this tier's, or a copy of a ticket.
        """
        number = number_of(ticket)
        slot = self.get(number)
        if slot is None:
            where = f" in {self._where!r}" if self._where else ""
            raise TierError(
                f"ticket {number} is not of this {self._tier!r} tier{where}: it belongs to another "
                "one, or it is a copy and its slot is gone.\n"
                "  try: use the tier that it comes from; keep the ticket itself, not a copy"
            )
        return number, slot, claim_of(slot.claim, tier=self._tier)

    def layout_to_give(
        self, slot: SlotT, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> Layout:
        """How its tensor is to lie when it comes back.

        Raises:
            UsageError: That takes another number of bytes, or does not lie densely.
        """
        layout = Layout(tuple(size), tuple(stride), dtype)
        if layout.num_bytes != slot.layout.num_bytes or not is_dense(size, stride):
            raise UsageError(
                f"{named(slot.label)} on tier {self._tier!r} has {slot.layout.num_bytes} bytes; it "
                f"cannot be given back as {layout}: that has {layout.num_bytes}, or does not lie "
                "densely"
            )
        return layout

    def release(self, number: int) -> None:
        """The last ticket of a slot is gone: `tidy_up` may drop it."""
        self._released[number] = None

    def tidy_up(self, drop: Callable[[int], bool]) -> None:
        """Drop slots without tickets; harmless to repeat, also within itself.

        Args:
            drop: Forgets the slot of that number, if there still is one; False if it cannot yet.
        """
        for number in tuple(self._released):
            if drop(number):
                self._released.pop(number, None)

    def use(self, *, reserved_bytes: int, num_threads: int) -> TierUse:
        """What the tier holds now."""
        slots = tuple(self.values())
        return TierUse(
            held_bytes=sum(slot.layout.num_bytes for slot in slots),
            in_flight_bytes=sum(slot.layout.num_bytes * slot.num_in_memory for slot in slots),
            reserved_bytes=reserved_bytes,
            num_slots=len(slots),
            num_threads=num_threads,
        )
