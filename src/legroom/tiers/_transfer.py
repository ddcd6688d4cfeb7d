"""One tensor on its way between memory and a file, in chunks; see Note [Chunks].

In go a transfer and the number of a chunk; the bytes are then where they belong, or an exception
says why not.
"""

# Note [Chunks]
# 1. Positions are counted from the start of the slot in the file, which lies on a whole block. The
#    tensor's bytes start at `shift`: where its memory lies within a block. So whole blocks of
#    memory are whole blocks of the file, and direct reads and writes need no copy. The allocator
#    puts large tensors at the same place within a block, so what they come back to mostly fits.
# 2. The bytes before the first and after the last whole block go through blocks of the thread's
#    own, in the same call. Where memory lies otherwise, the whole chunk goes through its buffer.
# 3. A read or write that stops early goes on where it stopped: with direct ones, at the start of
#    the block in which it did.
# 4. A read that finds the end of the file is an error: somebody has cut it.

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from legroom.tiers._extents import ALIGNMENT, rounded_down, rounded_up
from legroom.tiers._file import AbstractFile
from legroom.tiers._memory import Buffer, copy_memory, memory_at

_STANDSTILLS = 100
"""So often in a row may the system move less than a block."""

_Move = Callable[[Sequence[memoryview], int], int]


@final
@dataclass(slots=True, eq=False)
class Transfer:
    """What is to be moved, and how far that is. It keeps no tensor alive.

    Attributes:
        address: Of the tensor's bytes in memory.
        offset: Of the slot in the file, on a whole block.
        shift: How far behind that the tensor's bytes start; see Note [Chunks], rule 1.
        next_chunk: The first that nobody has taken.
        num_running: Chunks that somebody is at.
        error: What went wrong, if anything has.
        followed_by: The read that waits for this write.
    """

    is_write: bool
    address: int
    offset: int
    shift: int
    num_bytes: int
    chunk_bytes: int
    priority: int = 0
    next_chunk: int = 0
    num_running: int = 0
    is_done: bool = False
    error: BaseException | None = None
    followed_by: Transfer | None = None

    @property
    def num_chunks(self) -> int:
        """In how many pieces it is moved."""
        return -(-rounded_up(self.shift + self.num_bytes) // self.chunk_bytes)

    @property
    def has_more(self) -> bool:
        """Whether there are chunks that nobody has taken."""
        return self.next_chunk < self.num_chunks

    def stop(self, error: BaseException | None = None) -> None:
        """Hand out no more chunks.

        The error loses where it was raised: frames of callers hold tickets, which would never go.
        """
        if error is not None and self.error is None:
            error.__context__ = None
            self.error = error.with_traceback(None)
        self.next_chunk = self.num_chunks
        self.is_done = self.num_running == 0


def carry_out(transfer: Transfer, chunk: int, file: AbstractFile, buffer: Buffer) -> None:
    """Move one chunk; see Note [Chunks].

    Raises:
        OSError: The system could not.
    """
    start = chunk * transfer.chunk_bytes
    end = min(start + transfer.chunk_bytes, rounded_up(transfer.shift + transfer.num_bytes))
    first = max(start, transfer.shift)
    last = min(end, transfer.shift + transfer.num_bytes)
    if not file.is_direct:
        pieces = [memory_at(_address(transfer, first), last - first)]
        _move_all(transfer, file, pieces, transfer.offset + first)
        file.drop_pages(transfer.offset + start, end - start)
    elif (transfer.address - transfer.shift) % ALIGNMENT:
        _through_buffer(transfer, file, buffer, (start, end, first, last))
    else:
        _without_copy(transfer, file, buffer, (start, first, last))


def _through_buffer(
    transfer: Transfer, file: AbstractFile, buffer: Buffer, span: tuple[int, int, int, int]
) -> None:
    start, end, first, last = span
    inside = buffer.address + first - start
    if transfer.is_write:
        copy_memory(inside, _address(transfer, first), last - first)
    _move_all(transfer, file, [memory_at(buffer.address, end - start)], transfer.offset + start)
    if not transfer.is_write:
        copy_memory(_address(transfer, first), inside, last - first)


def _without_copy(
    transfer: Transfer, file: AbstractFile, buffer: Buffer, span: tuple[int, int, int]
) -> None:
    start, first, last = span
    whole_first, whole_last = rounded_up(first), rounded_down(last)
    edges = []
    if first < whole_first:
        count = min(whole_first, last) - first
        edges.append((buffer.head_address + first % ALIGNMENT, first, count))
    if whole_last < last and whole_last >= first:
        edges.append((buffer.tail_address, whole_last, last - whole_last))
    pieces = []
    if first < whole_first:
        pieces.append(memory_at(buffer.head_address, ALIGNMENT))
    if whole_first < whole_last:
        pieces.append(memory_at(_address(transfer, whole_first), whole_last - whole_first))
    if whole_last < last and whole_last >= first:
        pieces.append(memory_at(buffer.tail_address, ALIGNMENT))
    if transfer.is_write:
        for inside, position, count in edges:
            copy_memory(inside, _address(transfer, position), count)
    _move_all(transfer, file, pieces, transfer.offset + start)
    if not transfer.is_write:
        for inside, position, count in edges:
            copy_memory(_address(transfer, position), inside, count)


def _address(transfer: Transfer, position: int) -> int:
    """In memory, of a position in the slot."""
    return transfer.address + position - transfer.shift


def _move_all(
    transfer: Transfer, file: AbstractFile, pieces: list[memoryview], offset: int
) -> None:
    """See Note [Chunks], rules 3 and 4."""
    move: _Move = file.write if transfer.is_write else file.read
    standstills = 0
    while pieces:
        count = move(pieces, offset)
        if count == 0 and not transfer.is_write:
            raise OSError(errno.ENODATA, "the file ends before the tensor does")
        if file.is_direct:
            count = rounded_down(count)
        standstills = 0 if count else standstills + 1
        if standstills > _STANDSTILLS:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        pieces, offset = _behind(pieces, count), offset + count


def _behind(pieces: list[memoryview], count: int) -> list[memoryview]:
    """What is left of the pieces after so many bytes."""
    for index, piece in enumerate(pieces):
        if count < len(piece):
            return [piece[count:], *pieces[index + 1 :]]
        count -= len(piece)
    return []
