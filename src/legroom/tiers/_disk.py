"""The disk tier: tensors in one file without a name, moved by threads of its own.

In goes a tensor of whatever device, through host memory; out it comes again. See Note [Tickets],
Note [Order of transfers] and Note [What counts as memory].
"""

# Note [Slots]
# 1. A slot is a tensor's place in the file and what is under way for it. The tier holds it by its
#    number until its claim is gone and nothing is under way; the tickets hold the claim.
# 2. Every change of a slot is one assignment, in an order in which each state in between is sound:
#    an exception (Ctrl-C) at any point leaves a slot that the next call can go on with, and one
#    whose ticket never reached the caller is released with it.
# 3. A slot that has failed stays so: every later call for it raises the same again. Memory that was
#    not there to come back to is no failure of the slot.
# 4. In a child process of a fork there are no threads, and the file is the parent's. The child
#    closes its descriptor, and whatever it asks of the tier is an error.

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch

from legroom.errors import TierError, TierSpaceError, UsageError
from legroom.tiers._engine import READ, WRITE, Engine
from legroom.tiers._extents import ALIGNMENT, Extents, rounded_up
from legroom.tiers._file import AbstractFile, SystemFile
from legroom.tiers._folder import choose_folder, file_system_of
from legroom.tiers._layout import layout_of, named, new_tensor, relaid
from legroom.tiers._slots import AbstractSlot, Slots
from legroom.tiers._ticket import Claim, is_own_thread, new_ticket
from legroom.tiers._tier import AbstractTier, TierUse
from legroom.tiers._transfer import Transfer
from legroom.units import format_bytes

_CHUNK_BYTES = 4 * 1024**2
_GROWTH_BYTES = 64 * 1024**2
"""The file grows by at least so much where there is room, so that it seldom grows."""


@final
@dataclass(slots=True, eq=False)
class _Slot(AbstractSlot):
    """See Note [Slots].

    Attributes:
        shift: See Note [Chunks].
        offset: In the file; None for a tensor without bytes, or as long as it has no place.
        source: The memory that is being written, until it is settled.
        destination: What is being read into.
    """

    shift: int
    offset: int | None = None
    source: torch.UntypedStorage | None = None
    destination: torch.Tensor | None = None
    write: Transfer | None = None
    read: Transfer | None = None

    @property
    def place_bytes(self) -> int:
        """What it takes in the file."""
        return rounded_up(self.shift + self.layout.num_bytes)

    @property
    def num_in_memory(self) -> int:
        """Once while it is written, once while it is read."""
        return (self.source is not None) + (self.destination is not None)

    @property
    def failure(self) -> tuple[str, BaseException] | None:
        """What could not be done, and why."""
        for verb, transfer in (("written", self.write), ("read", self.read)):
            if transfer is not None and transfer.is_done and transfer.error is not None:
                return verb, transfer.error
        return None

    @property
    def is_idle(self) -> bool:
        """Whether nobody reads or writes its memory."""
        return not any(each is not None and each.num_running for each in (self.write, self.read))


@final
class Disk(AbstractTier):
    """Tensors in a file; see Note [Slots].

    Args:
        file: Where they go; the tier closes it.
        threads: That read and write.
        synchronous: Whether the calling thread does, within `put` and `get`, to find out what the
            threads have to do with something. What comes back is the same.
        chunk_bytes: What is moved in one call of the system.
    """

    name = "disk"
    summary = "a file without a name, read and written past the page cache"

    def __init__(
        self,
        file: AbstractFile,
        *,
        threads: int = 2,
        synchronous: bool = False,
        chunk_bytes: int = _CHUNK_BYTES,
    ) -> None:
        if threads < 1:
            raise UsageError(f"threads is {threads!r}; the disk tier needs at least one")
        self._file = file
        self._num_threads = 0 if synchronous else threads
        self._engine = Engine(file, num_threads=self._num_threads, chunk_bytes=chunk_bytes)
        self._chunk_bytes = chunk_bytes
        self._slots: Slots[_Slot] = Slots(self.name, str(file.folder))
        self._unsettled: dict[int, _Slot] = {}
        self._extents = Extents()
        self._file_bytes = 0
        self._is_forked = False
        self._closer = weakref.finalize(self, _close_all, self._engine, file, self._slots)
        _all_tiers.add(self)

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str] | None = None,
        *,
        threads: int = 2,
        synchronous: bool = False,
        direct: bool | None = None,
        allow_tmpfs: bool = False,
    ) -> Disk:
        """A tier with a new file.

        Args:
            folder: None for the one that `LEGROOM_DISK` names, else that for temporary files.
            direct: Whether to go past the page cache; None: where the file system can. There,
                it takes hardly any time of the processor, which computing can use instead.
            allow_tmpfs: Whether the folder may lie in memory.

        Raises:
            TierError: The folder is not there, may not be written to, or lies in memory.
        """
        chosen = choose_folder(folder, allow_tmpfs=allow_tmpfs)
        file = SystemFile.open(chosen, direct=direct)
        return cls(file, threads=threads, synchronous=synchronous)

    def open_again(self) -> Disk:
        """One with a new file in the same folder: in a child process of a fork, or after closing.

        Raises:
            TierError: The folder is not there any more.
        """
        return Disk.open(
            self.folder,
            threads=self._num_threads or 1,
            synchronous=not self._num_threads,
            direct=None if self.is_direct else False,
            allow_tmpfs=True,
        )

    @property
    def folder(self) -> Path:
        """Where its file is."""
        return self._file.folder

    @property
    def is_direct(self) -> bool:
        """Whether it goes past the page cache."""
        return self._file.is_direct

    @property
    def is_usable(self) -> bool:
        """Whether it is neither closed nor another process's."""
        return not (self._is_forked or self._engine.is_closed)

    def describe(self) -> dict[str, str]:
        """Where it is and how it works."""
        device = ""
        with contextlib.suppress(OSError):  # somebody has removed the folder; the file is there
            number = os.stat(self.folder).st_dev
            device = f"{os.major(number)}:{os.minor(number)}"
        return {
            "where": str(self.folder),
            "file_system": file_system_of(self.folder),
            "device": device,
            "access": "direct" if self.is_direct else "page cache",
            "threads": str(self._num_threads) if self._num_threads else "none",
        }

    def free_bytes(self) -> int:
        """What its file system has left, beside what the file has."""
        return self._file.free_bytes()

    def put(self, tensor: torch.Tensor, *, label: str = "") -> torch.Tensor:
        """A ticket for the tensor, at once; see Note [Tickets]."""
        self._check_usable()
        layout = layout_of(tensor, label=label)
        device = tensor.device
        with torch.no_grad():
            held = tensor if device.type == "cpu" else tensor.detach().to("cpu")
        address = held.data_ptr()
        claim = Claim(self._on_release)
        slot = _Slot(weakref.ref(claim), label, layout, device, address % ALIGNMENT)
        ticket = new_ticket(claim)
        self._tidy_up()
        if layout.num_bytes == 0:
            self._slots[claim.number] = slot
            return ticket
        slot.source = held.untyped_storage()
        with self._engine.lock:
            self._slots[claim.number] = slot
            self._place(slot)
            assert slot.offset is not None, "bug in legroom: a slot without a place"
            slot.write = self._transfer(slot, address, slot.offset, is_write=True)
            self._unsettled[claim.number] = slot
        self._engine.submit(slot.write)
        return ticket

    def settle(self, ticket: torch.Tensor) -> torch.Tensor:
        """Wait until the bytes have left, and let the tensor go; a new ticket."""
        number, slot, claim = self._find(ticket)
        if slot.write is not None:
            self._engine.wait(slot.write, what=named(slot.label))
        slot.source = None
        self._unsettled.pop(number, None)
        self._raise_failure(slot)
        return new_ticket(claim)

    def fetch(self, ticket: torch.Tensor) -> torch.Tensor:
        """Allocate the memory to come back to and start reading; a new ticket."""
        _, slot, claim = self._find(ticket)
        self._raise_failure(slot)
        self._tidy_up()
        self._start_reading(slot)
        return new_ticket(claim)

    def get(
        self,
        ticket: torch.Tensor,
        size: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """The tensor, in memory of its own; reads it now if nobody has fetched it."""
        _, slot, _claim = self._find(ticket)
        layout = self._slots.layout_to_give(slot, size, stride, dtype)
        if slot.write is None:
            found = new_tensor(slot.layout, label=slot.label, tier=self.name)
            return relaid(found, layout).to(slot.device)
        while True:
            self._raise_failure(slot)
            read = self._start_reading(slot)
            assert read is not None, "bug in legroom: nothing to read"
            self._engine.wait_after(slot.write, read, what=named(slot.label))
            self._raise_failure(slot)
            with self._engine.lock:
                destination = slot.destination if slot.read is read else None
                if destination is not None:  # otherwise another thread got it: read again
                    slot.read = slot.destination = None
                    break
        return relaid(destination, layout).to(slot.device)

    def reserve(self, num_bytes: int, *, num_tensors: int = 1) -> None:
        """Set space aside, so that this much fits beside what is held now.

        A tensor begins in the file as it does in memory, beside a multiple of the alignment.
        """
        self._check_usable()
        self._tidy_up()
        with self._engine.lock:
            around = 2 * ALIGNMENT * (num_tensors - 1)
            self._grow_to(self._extents.num_bytes + rounded_up(num_bytes) + around)

    def in_use(self) -> TierUse:
        """What it holds now."""
        self._tidy_up()
        with self._engine.lock:
            return self._slots.use(
                reserved_bytes=self._file_bytes, num_threads=self._engine.num_threads
            )

    def close(self) -> None:
        """Let everything go: tickets that are still alive are worth nothing afterwards."""
        self._closer()
        self._unsettled.clear()

    def _transfer(self, slot: _Slot, address: int, offset: int, *, is_write: bool) -> Transfer:
        return Transfer(
            is_write=is_write,
            address=address,
            offset=offset,
            shift=slot.shift,
            num_bytes=slot.layout.num_bytes,
            chunk_bytes=self._chunk_bytes,
            priority=WRITE if is_write else READ,
        )

    def _start_reading(self, slot: _Slot) -> Transfer | None:
        """The read that is under way; starts one where there is none."""
        if slot.write is None:
            return None
        read = slot.read
        if read is not None and slot.destination is not None:
            return read
        destination = new_tensor(slot.layout, label=slot.label, tier=self.name)
        assert slot.offset is not None, "bug in legroom: a slot without a place"
        fresh = self._transfer(slot, destination.data_ptr(), slot.offset, is_write=False)
        with self._engine.lock:
            read = slot.read
            if read is not None and slot.destination is not None:
                return read
            slot.destination = destination
            slot.read = fresh
            self._engine.submit(fresh, after=slot.write)
        return fresh

    def _place(self, slot: _Slot) -> None:
        """Find room in the file, which grows where there is none."""
        offset = self._extents.find(slot.place_bytes)
        end = offset + slot.place_bytes
        if end > self._file_bytes:
            self._grow_for(slot, end)
        slot.offset = offset
        self._extents.take(offset, slot.place_bytes)

    def _grow_for(self, slot: _Slot, end: int) -> None:
        with contextlib.suppress(TierSpaceError):
            self._grow_to(max(end, self._file_bytes + _GROWTH_BYTES))
            return
        try:
            self._grow_to(end)
        except TierSpaceError as error:
            raise error.for_tensor(slot.label) from error.__cause__

    def _grow_to(self, num_bytes: int) -> None:
        if num_bytes > self._file_bytes:
            self._file.grow(self._file_bytes, num_bytes)
            self._file_bytes = num_bytes

    def _find(self, ticket: torch.Tensor) -> tuple[int, _Slot, Claim]:
        self._check_usable()
        return self._slots.find(ticket)

    def _check_usable(self) -> None:
        if self._is_forked:
            raise TierError(
                f"tier {self.name!r} belongs to the process that this one was forked from.\n"
                "  try: tiers.disk() in this process, which opens one of its own"
            )
        if self._engine.is_closed:
            raise TierError(f"tier {self.name!r} in {str(self.folder)!r} is closed")

    def _raise_failure(self, slot: _Slot) -> None:
        failure = slot.failure
        if failure is None:
            return
        verb, error = failure
        slot.source = slot.destination = None
        direction = "to" if verb == "written" else "from"
        raise TierError(
            f"{named(slot.label)} ({format_bytes(slot.layout.num_bytes)}) could not be {verb} "
            f"{direction} tier {self.name!r} in {str(self.folder)!r}: {error}.\n"
            "  try: the step again; if it happens again, another folder (LEGROOM_DISK)"
        ) from error

    def _on_release(self, number: int) -> None:
        """The last ticket of a slot is gone; runs in whatever thread, at whatever point."""
        self._slots.release(number)
        if not is_own_thread():
            self._tidy_up()

    def _tidy_up(self) -> None:
        """Let go what nobody needs: slots without tickets, tensors that have been written.

        Harmless to repeat, also within itself: a finalizer may run anywhere.
        """
        if self._is_forked or self._engine.is_closed:
            return
        with self._engine.lock:
            self._slots.tidy_up(self._drop)
            for number, slot in tuple(self._unsettled.items()):
                if slot.write is not None and slot.write.is_done and slot.write.error is None:
                    slot.source = None
                    self._unsettled.pop(number, None)

    def _drop(self, number: int) -> bool:
        """Forget a slot; False while somebody reads or writes its memory."""
        slot = self._slots.get(number)
        if slot is None:
            return True
        for transfer in (slot.write, slot.read):
            if transfer is not None and not transfer.is_done:
                transfer.stop()
        if not slot.is_idle:
            return False
        if slot.offset is not None:
            self._extents.give_back(slot.offset, slot.place_bytes)
        self._unsettled.pop(number, None)
        self._slots.pop(number, None)
        return True

    def _leave_to_parent(self) -> None:
        """See Note [Slots], rule 4."""
        self._is_forked = True
        self._closer.detach()
        self._engine.abandon()
        with contextlib.suppress(OSError):
            self._file.close()


def _close_all(engine: Engine, file: AbstractFile, slots: Slots[_Slot]) -> None:
    """Also at the end of the process, and when nobody has the tier any more.

    A thread that does not come back from the system keeps its memory and the descriptor.
    """
    if engine.close():
        file.close()
        slots.clear()


_all_tiers: weakref.WeakSet[Disk] = weakref.WeakSet()


def _pause_all() -> None:
    for tier in tuple(_all_tiers):
        tier._engine.pause()


def _resume_all() -> None:
    for tier in tuple(_all_tiers):
        tier._engine.resume()


def _leave_all_to_parent() -> None:
    for tier in tuple(_all_tiers):
        tier._leave_to_parent()


if sys.platform != "win32":
    os.register_at_fork(
        before=_pause_all, after_in_parent=_resume_all, after_in_child=_leave_all_to_parent
    )
