"""What a tier is: a place for bytes besides the device.

In goes a tensor; out comes a ticket, a tiny tensor that stands for it; and for the ticket, later,
the tensor again, bit for bit. See Note [Tickets].
"""

# Note [Tickets]
# 1. A ticket is one 64-bit integer in a tensor, the number of a slot. Every tensor that shares the
#    ticket's storage keeps the slot: autograd detaches and saves tensors, so their lifetimes say
#    nothing, and that of the storage says all. A copy of the number is no ticket.
# 2. `settle` and `fetch` return new tickets of the same slot, because an operation of PyTorch's may
#    not return what it was given. The slot goes with the last of its tickets, whether the tensor
#    was ever got or not.
# 3. A ticket can be got any number of times. What `fetch` has read is handed over by the next
#    `get`; after that the tier holds no memory for the slot.
# 4. Memory is released in threads that call the tier, or drop the last ticket, never in a thread
#    of the tier's own: PyTorch's profiler does not see what other threads release. What is still
#    being written when its last ticket goes is released by the next call of the tier.
# 5. From `put` until `settle` the tensor must not be changed. Nobody checks that here.

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch


@final
@dataclass(frozen=True, slots=True)
class TierUse:
    """What a tier holds at a moment.

    Attributes:
        held_bytes: Of tensors whose tickets are alive, or whose transfer has not ended.
        in_flight_bytes: Of tensors that are still in memory, on their way out or in.
        reserved_bytes: Space that is set aside, used or not.
        num_slots: Tensors.
        num_threads: Threads of the tier's own that are alive.
    """

    held_bytes: int
    in_flight_bytes: int
    reserved_bytes: int
    num_slots: int
    num_threads: int


class AbstractTier(abc.ABC):
    """A place for bytes; see Note [Tickets]. Several threads may use one at the same time.

    Attributes:
        name: As in `legroom tiers`.
        summary: What it is, in a clause.
        device_type: Where tensors are that it is made for.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    device_type: ClassVar[str] = "cpu"

    @classmethod
    @abc.abstractmethod
    def open(cls) -> AbstractTier:
        """A new one, with the options that it has without being told any.

        Raises:
            TierError: There can be none here.
        """

    @abc.abstractmethod
    def open_again(self) -> AbstractTier:
        """A new one with this one's options, which cannot be used any more.

        Raises:
            TierError: There can be none.
        """

    @property
    @abc.abstractmethod
    def is_usable(self) -> bool:
        """Whether it is neither closed nor another process's."""

    @abc.abstractmethod
    def describe(self) -> dict[str, str]:
        """Where it is and how it works: all that its speed depends on. `where` is for people."""

    @abc.abstractmethod
    def free_bytes(self) -> int:
        """What could still be set aside."""

    @abc.abstractmethod
    def put(self, tensor: torch.Tensor, *, label: str = "") -> torch.Tensor:
        """A ticket for the tensor, at once: it is written in the background and kept alive.

        Args:
            tensor: Any that lies densely in memory, in whatever order of dimensions.
            label: What errors call it.

        Raises:
            UsageError: The tensor does not lie densely, or is of a kind that has no plain bytes.
            TierSpaceError: There is no room. The tensor is as it was.
        """

    @abc.abstractmethod
    def settle(self, ticket: torch.Tensor) -> torch.Tensor:
        """Wait until the bytes have left, and let the tensor go; a new ticket of the same slot.

        Raises:
            TierError: They could not be written.
        """

    @abc.abstractmethod
    def fetch(self, ticket: torch.Tensor) -> torch.Tensor:
        """Allocate the memory to come back to and start reading; a new ticket of the same slot.

        Raises:
            TierError: There is not that much memory, or the slot has failed before.
        """

    @abc.abstractmethod
    def get(
        self,
        ticket: torch.Tensor,
        size: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """The tensor, in memory of its own; reads it now if nobody has fetched it.

        Raises:
            TierError: The bytes could not be written or cannot be read.
        """

    @abc.abstractmethod
    def reserve(self, num_bytes: int, *, num_tensors: int = 1) -> None:
        """Set space aside, so that this much, in so many tensors, fits beside what is held now.

        Raises:
            TierSpaceError: There is less.
        """

    @abc.abstractmethod
    def in_use(self) -> TierUse:
        """What it holds now."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let everything go: tickets that are still alive are worth nothing afterwards."""

    @final
    @contextlib.contextmanager
    def closing(self) -> Iterator[AbstractTier]:
        """The tier, closed at the end."""
        try:
            yield self
        finally:
            self.close()
