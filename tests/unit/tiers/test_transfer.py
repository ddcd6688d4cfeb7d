"""Chunks against a file in memory that insists on alignment, at every place within a block."""

import ctypes
import random

from hypothesis import given, settings
from hypothesis import strategies as some

from legroom.tiers import AbstractFile
from legroom.tiers._extents import ALIGNMENT
from legroom.tiers._memory import Buffer
from legroom.tiers._transfer import Transfer, carry_out

OFFSET = 2 * ALIGNMENT


class MemoryFile(AbstractFile):
    """Direct, as strict as the strictest device."""

    folder = "nowhere"

    def __init__(self, num_bytes, *, is_direct):
        self.content, self.is_direct = bytearray(num_bytes), is_direct

    def write(self, pieces, offset):
        return self._move(pieces, offset, is_write=True)

    def read(self, pieces, offset):
        return self._move(pieces, offset, is_write=False)

    def _move(self, pieces, offset, *, is_write):
        start = offset
        for piece in pieces:
            if self.is_direct:
                address = ctypes.addressof(ctypes.c_char.from_buffer(piece))
                assert (address % ALIGNMENT, len(piece) % ALIGNMENT) == (0, 0)
                assert offset % ALIGNMENT == 0
            if is_write:
                self.content[offset : offset + len(piece)] = piece
            else:
                piece[:] = self.content[offset : offset + len(piece)]
            offset += len(piece)
        return offset - start

    def drop_pages(self, offset, num_bytes):
        assert not self.is_direct
        assert offset % ALIGNMENT == 0

    def grow(self, old_bytes, new_bytes):
        raise NotImplementedError

    def free_bytes(self):
        return 0

    def close(self):
        pass


def transfer_all(transfer, file, buffer, order):
    chunks = list(range(transfer.num_chunks))
    order.shuffle(chunks)
    for chunk in chunks:
        carry_out(transfer, chunk, file, buffer)


@settings(max_examples=300, deadline=None)
@given(
    num_bytes=some.integers(1, 5 * ALIGNMENT + 3),
    put_place=some.integers(0, ALIGNMENT - 1),
    get_place=some.one_of(some.none(), some.integers(0, ALIGNMENT - 1)),
    chunk_blocks=some.integers(1, 4),
    is_direct=some.booleans(),
    seed=some.integers(0, 1000),
)
def test_bytes_go_and_come_back(num_bytes, put_place, get_place, chunk_blocks, is_direct, seed):
    """`get_place` None: at the same place within a block, so that nothing is copied."""
    order = random.Random(seed)
    memory = bytearray(order.randbytes(16 * ALIGNMENT))
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    base = -start % ALIGNMENT
    source = base + put_place
    destination = base + 8 * ALIGNMENT + (put_place if get_place is None else get_place)
    chunk_bytes = chunk_blocks * ALIGNMENT
    buffer = Buffer(chunk_bytes)
    file = MemoryFile(16 * ALIGNMENT, is_direct=is_direct)
    expected = bytes(memory[source : source + num_bytes])
    around = (
        bytes(memory[destination - 1 : destination]),
        bytes(memory[destination + num_bytes : destination + num_bytes + 1]),
    )

    def transfer(address, *, is_write):
        return Transfer(
            is_write=is_write,
            address=start + address,
            offset=OFFSET,
            shift=put_place,
            num_bytes=num_bytes,
            chunk_bytes=chunk_bytes,
        )

    transfer_all(transfer(source, is_write=True), file, buffer, order)
    begin = OFFSET + put_place
    assert file.content[begin : begin + num_bytes] == expected
    assert not any(file.content[:OFFSET])
    transfer_all(transfer(destination, is_write=False), file, buffer, order)
    assert memory[destination : destination + num_bytes] == expected
    assert memory[source : source + num_bytes] == expected
    assert around == (
        bytes(memory[destination - 1 : destination]),
        bytes(memory[destination + num_bytes : destination + num_bytes + 1]),
    )
