"""The host tier: tensors of an accelerator in pinned host memory.

In goes a tensor of a device; out it comes again. Nothing here waits: what must come after what is
said to the device. See Note [Tickets] and Note [Marks].
"""

# Note [Marks]
# 1. Three queues of the device: computing, copies outward, copies inward. `put` has the copy
#    outward wait for what computing has been given so far, which makes the tensor.
# 2. `settle` has computing wait for that copy. The tensor's memory is then free for what is
#    computed later, and for nothing sooner: PyTorch reuses memory in the order of computing.
# 3. `fetch` has the copy inward wait for computing, which may still use the memory that it goes to,
#    and for the copy outward. `get` has computing wait for the copy inward.
# 4. Memory of a tensor, or to come back to, that is dropped before `settle` or `get` is let go as
#    by these.
# 5. Host memory is written by copies outward alone. Before its bytes are used for another tensor,
#    these wait for the last copy inward.
# 6. Host memory comes in slabs, which are kept until the tier is closed: pinning takes long.

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch

from legroom.errors import TierError, TierSpaceError, UsageError
from legroom.tiers._accelerator import AbstractAccelerator, Cuda
from legroom.tiers._available import available_bytes
from legroom.tiers._extents import ALIGNMENT, Extents, rounded_up
from legroom.tiers._layout import Layout, layout_of, named, relaid
from legroom.tiers._slots import AbstractSlot, Slots
from legroom.tiers._ticket import Claim, new_ticket
from legroom.tiers._tier import AbstractTier, TierUse

_CPU = torch.device("cpu")

_SLAB_BYTES = 64 * 1024**2


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Slab:
    """A piece of host memory, for one device; see Note [Marks], rule 6."""

    memory: torch.Tensor
    extents: Extents = field(default_factory=Extents)


@final
@dataclass(slots=True, eq=False)
class _Slot(AbstractSlot):
    """A tensor's place and what is under way for it.

    Attributes:
        left: Reached when its bytes are in host memory.
        back: Reached when they are in `destination`.
        source, destination: Memory of the device that a copy still needs, with the queue of
            computing in which it was given away.
    """

    slab: _Slab | None = None
    offset: int = 0
    left: Any = None
    back: Any = None
    source: tuple[torch.Tensor, Any] | None = None
    destination: tuple[torch.Tensor, Any] | None = None

    @property
    def place_bytes(self) -> int:
        """What it takes of the slab."""
        return rounded_up(self.layout.num_bytes)

    @property
    def num_in_memory(self) -> int:
        """On the device: once while it leaves, once while it comes back."""
        return (self.source is not None) + (self.destination is not None)

    @property
    def memory(self) -> torch.Tensor:
        """Its bytes in host memory."""
        assert self.slab is not None, "bug in legroom: a slot without a place"
        return self.slab.memory[self.offset : self.offset + self.layout.num_bytes]


@final
class Host(AbstractTier):
    """Tensors of an accelerator in host memory; see Note [Marks].

    Args:
        accelerator: Where the tensors come from.
    """

    name = "host"
    summary = "pinned host memory, for tensors of a CUDA device"
    device_type = "cuda"

    def __init__(self, accelerator: AbstractAccelerator) -> None:
        self._accelerator = accelerator
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._is_closed = False
        self._slots: Slots[_Slot] = Slots(self.name)
        self._slabs: dict[torch.device, list[_Slab]] = {}

    @classmethod
    def open(cls) -> Host:
        """A new one, for the CUDA devices of this machine.

        Raises:
            TierError: There are none.
        """
        if not torch.cuda.is_available():
            raise TierError(
                "the host tier is for tensors of an accelerator, and there is no CUDA device here."
                "\n  try: the disk, which takes tensors of any device: disk=True, or --disk FOLDER"
            )
        return cls(Cuda())

    def open_again(self) -> Host:
        """A new one, for the same devices."""
        return Host(self._accelerator)

    @property
    def is_usable(self) -> bool:
        """Whether it is neither closed nor another process's."""
        return not self._is_closed and self._process == os.getpid()

    def describe(self) -> dict[str, str]:
        """Where it is and how it works."""
        return self._accelerator.describe()

    def free_bytes(self) -> int:
        """What the machine has left, beside what is pinned already."""
        return available_bytes(_CPU) or 0

    def put(self, tensor: torch.Tensor, *, label: str = "") -> torch.Tensor:
        """A ticket for the tensor, at once; see Note [Marks], rule 1."""
        self._check_usable()
        if not self._accelerator.owns(tensor):
            raise UsageError(
                f"{named(label)} is on {str(tensor.device)!r}; tier {self.name!r} is for tensors "
                "of an accelerator.\n  try: tier 'disk'"
            )
        layout = layout_of(tensor, label=label)
        claim = Claim(self._on_release)
        slot = _Slot(weakref.ref(claim), label, layout, tensor.device)
        ticket = new_ticket(claim)
        self._tidy_up()
        with self._lock:
            self._slots[claim.number] = slot
            if layout.num_bytes:
                self._place(slot)
                self._copy_out(slot, tensor.detach())
        return ticket

    def settle(self, ticket: torch.Tensor) -> torch.Tensor:
        """Let computing wait until the bytes have left, and let the tensor go; a new ticket."""
        slot, claim = self._find(ticket)
        with self._lock:
            self._let_source_go(slot)
        return new_ticket(claim)

    def fetch(self, ticket: torch.Tensor) -> torch.Tensor:
        """Allocate the memory to come back to and start copying; a new ticket."""
        slot, claim = self._find(ticket)
        self._tidy_up()
        with self._lock:
            self._copy_in(slot)
        return new_ticket(claim)

    def get(
        self,
        ticket: torch.Tensor,
        size: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """The tensor, in memory of its own; copies it now if nobody has fetched it."""
        slot, _claim = self._find(ticket)
        layout = self._slots.layout_to_give(slot, size, stride, dtype)
        if not layout.num_bytes:
            return self._accelerator.new_tensor(layout, slot.device)
        with self._lock:
            self._copy_in(slot)
            assert slot.destination is not None, "bug in legroom: nothing came back"
            self._accelerator.wait(self._accelerator.compute(slot.device), slot.back)
            tensor, _queue = slot.destination
            slot.destination = None
        return relaid(tensor, layout)

    def reserve(self, num_bytes: int, *, num_tensors: int = 1) -> None:
        """Pin memory, so that this much fits beside what is held now."""
        self._check_usable()
        device = torch.device(self.device_type, _current_device())
        wanted_bytes = rounded_up(num_bytes) + ALIGNMENT * (num_tensors - 1)
        with self._lock:
            slabs = self._slabs.setdefault(device, [])
            free = sum(each.memory.numel() - each.extents.num_bytes for each in slabs)
            if wanted_bytes > free:
                slabs.append(self._new_slab(wanted_bytes - free))

    def in_use(self) -> TierUse:
        """What it holds now."""
        self._tidy_up()
        with self._lock:
            slabs = [slab for each in self._slabs.values() for slab in each]
            pinned_bytes = sum(slab.memory.numel() for slab in slabs)
            return self._slots.use(reserved_bytes=pinned_bytes, num_threads=0)

    def close(self) -> None:
        """Let everything go, once the copies that were asked for are done."""
        if not self.is_usable:
            return
        with self._lock:
            for number in tuple(self._slots):
                self._drop(number)
            self._is_closed = True
            for device in self._slabs:
                self._accelerator.finish(self._accelerator.outward(device))
                self._accelerator.finish(self._accelerator.inward(device))
            self._slabs.clear()

    def _copy_out(self, slot: _Slot, tensor: torch.Tensor) -> None:
        device = self._accelerator
        computing, outward = device.compute(slot.device), device.outward(slot.device)
        device.wait(outward, device.mark(computing))
        device.copy(outward, slot.memory, _bytes_of(tensor, slot.layout))
        slot.left = device.mark(outward)
        slot.source = (tensor, computing)

    def _copy_in(self, slot: _Slot) -> None:
        """See Note [Marks], rule 3; nothing where it is under way already."""
        if slot.destination is not None or not slot.layout.num_bytes:
            return
        device = self._accelerator
        tensor = device.new_tensor(slot.layout, slot.device)
        computing, inward = device.compute(slot.device), device.inward(slot.device)
        device.wait(inward, device.mark(computing))
        device.wait(inward, slot.left)
        device.copy(inward, _bytes_of(tensor, slot.layout), slot.memory)
        slot.back = device.mark(inward)
        slot.destination = (tensor, computing)

    def _let_source_go(self, slot: _Slot) -> None:
        """See Note [Marks], rule 2."""
        if slot.source is not None:
            self._accelerator.wait(self._accelerator.compute(slot.device), slot.left)
            self._accelerator.wait(slot.source[1], slot.left)
            slot.source = None

    def _place(self, slot: _Slot) -> None:
        slabs = self._slabs.setdefault(slot.device, [])
        for slab in slabs:
            offset = slab.extents.find(slot.place_bytes)
            if offset + slot.place_bytes <= slab.memory.numel():
                break
        else:
            slab, offset = self._new_slab(max(slot.place_bytes, _SLAB_BYTES)), 0
            slabs.append(slab)
        slot.offset, slot.slab = offset, slab
        slab.extents.take(offset, slot.place_bytes)

    def _new_slab(self, num_bytes: int) -> _Slab:
        try:
            return _Slab(self._accelerator.new_host_bytes(num_bytes))
        except RuntimeError as error:
            raise TierSpaceError(
                tier=self.name,
                folder="pinned host memory",
                wanted_bytes=num_bytes,
                free_bytes=self.free_bytes(),
                reason=str(error).partition("\n")[0],
            ) from error

    def _find(self, ticket: torch.Tensor) -> tuple[_Slot, Claim]:
        self._check_usable()
        _number, slot, claim = self._slots.find(ticket)
        return slot, claim

    def _check_usable(self) -> None:
        if not self.is_usable:
            raise TierError(f"tier {self.name!r} is closed, or belongs to the parent process")

    def _on_release(self, number: int) -> None:
        self._slots.release(number)
        self._tidy_up()

    def _tidy_up(self) -> None:
        """Forget slots without tickets."""
        if self.is_usable:
            with self._lock:
                self._slots.tidy_up(self._drop)

    def _drop(self, number: int) -> bool:
        """Forget a slot, at once; see Note [Marks], rules 4 and 5."""
        slot = self._slots.get(number)
        if slot is None:
            return True
        self._let_source_go(slot)
        if slot.back is not None:
            self._accelerator.wait(self._accelerator.outward(slot.device), slot.back)
        if slot.destination is not None:
            self._accelerator.wait(slot.destination[1], slot.back)
            slot.destination = None
        if slot.slab is not None:
            slot.slab.extents.give_back(slot.offset, slot.place_bytes)
        self._slots.pop(number, None)
        return True


def _bytes_of(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The bytes of a dense tensor as they lie."""
    start = int(tensor.storage_offset()) * layout.dtype.itemsize
    bare = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return bare.set_(tensor.untyped_storage(), start, (layout.num_bytes,), (1,))


def _current_device() -> int:
    return torch.cuda.current_device() if torch.cuda.is_available() else 0
