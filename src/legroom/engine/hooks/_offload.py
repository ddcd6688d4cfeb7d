"""`legroom.offload`: what autograd saves goes to a tier, and comes back in backward.

In goes eager code in a `with`; out comes the same training with fewer tensors in memory between
forward and backward. See Note [Saved tensors].
"""

# Note [Saved tensors]
# 1. Autograd hands over each tensor that it saves, and asks for it once in each backward pass. What
#    it gets back has the same bits, size and strides; to which operation it belongs, autograd knows
#    itself, so gradients of gradients work.
# 2. Not moved: what is smaller than `min_bytes`; a leaf that requires gradients (a parameter) and
#    its views, which stay anyway; what is more than plain bytes (sparse, quantized, a subclass).
#    Whether anybody else holds on to a tensor (the batch) is not known: it is moved, in vain.
# 3. A tensor that lies densely is moved alone; of any other, its whole storage. The key is the
#    storage itself, held weakly, with the range of bytes and the version: what is saved twice is
#    written once, and what has changed in between is another tensor. Addresses are no keys. What
#    is changed through `.data`, which has versions of its own, counts as unchanged.
# 4. As long as the storage lives, because somebody holds it or it is still being written, it is
#    used as it is, without reading. What one reader has got, the next one shares.
# 5. With hooks, PyTorch does not notice that a saved tensor was changed in place, not even one that
#    is kept as it is. So it is noticed here: an alias without memory shares the counter of
#    versions, and lives when the tensor does not.
# 6. No more than `in_flight_bytes` are being written: then the oldest is waited for. Reading goes
#    ahead of backward, in the reverse order of saving, by `ahead_bytes`.
# 7. Where backward ends with an exception, PyTorch's engine keeps what it has not come to until the
#    next backward pass of the same thread (seen in 2.13, with and without hooks); so does the tier.

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch.autograd.graph import saved_tensors_hooks

from legroom import tiers
from legroom.engine.hooks._shrink import choose_encodings, encoding_for
from legroom.errors import SavedTensorModifiedError, TierError, UsageError
from legroom.ways import AbstractEncoding

_MIN_BYTES = 1024**2
_IN_FLIGHT_BYTES = 256 * 1024**2
_AHEAD_BYTES = 128 * 1024**2
_LOOKED_AT = 256
"""So many saved tensors before the one that is wanted are looked at for reading ahead."""

_Key = tuple[int, int, int, torch.dtype]


@final
class _Held:
    """Bytes on the tier, for one or several saved tensors; see Note [Saved tensors], rules 3, 4.

    Attributes:
        put_layout: Of what is on the tier: size, strides and type.
        layout: Of what comes back, after decoding.
        start_bytes: Where in the storage it began.
        source: The storage that it was taken from.
        back: The storage in which it came back last.
        serial: The how manyth it is.
    """

    __slots__ = (
        "__weakref__", "back", "encoding", "is_fetched", "is_settled", "layout", "num_bytes",
        "put_layout", "serial", "source", "start_bytes", "ticket",
    )  # fmt: skip

    def __init__(
        self,
        value: torch.Tensor,
        held: torch.Tensor,
        encoding: type[AbstractEncoding] | None,
        serial: int,
    ) -> None:
        self.layout, self.put_layout = _layout_of(value), _layout_of(held)
        self.start_bytes = _start_of(value)
        self.num_bytes = held.numel() * held.dtype.itemsize
        self.encoding, self.serial = encoding, serial
        self.source = weakref.ref(value.untyped_storage())
        self.back: weakref.ref[torch.UntypedStorage] | None = None
        self.is_settled = self.is_fetched = False
        self.ticket: torch.Tensor

    def in_memory(self) -> tuple[torch.UntypedStorage, int] | None:
        """A storage that has the bytes, and where in it they begin."""
        source = self.source()
        if source is not None:
            return source, self.start_bytes
        back = self.back() if self.back is not None else None
        return None if back is None else (back, 0)


@final
@dataclass(frozen=True, slots=True)
class _Saved:
    """What autograd keeps instead of a tensor.

    Attributes:
        kept: The tensor itself, where it is not moved.
        held: Where its bytes are, otherwise.
        offset_bytes: Where in these its own begin.
        witness: Shares the tensor's counter of versions; see Note [Saved tensors], rule 5.
    """

    kept: torch.Tensor | None
    held: _Held | None
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    offset_bytes: int
    witness: torch.Tensor
    version: int


@final
class Offloading:
    """One `with legroom.offload()`: what it has moved, and the two hooks.

    Attributes:
        num_moved: Tensors put on the tier so far.
        moved_bytes: Bytes of them, as they are there.
        num_shared: Saved tensors whose bytes were there already.
        num_kept: Saved tensors that were left in memory.
    """

    def __init__(
        self,
        tier: tiers.AbstractTier,
        *,
        min_bytes: int,
        encodings: tuple[type[AbstractEncoding], ...],
        in_flight_bytes: int,
        ahead_bytes: int,
    ) -> None:
        self.num_moved = self.moved_bytes = self.num_shared = self.num_kept = 0
        self._tier, self._min_bytes, self._encodings = tier, min_bytes, encodings
        self._in_flight_bytes, self._ahead_bytes = in_flight_bytes, ahead_bytes
        self._lock = threading.RLock()
        self._known: weakref.WeakKeyDictionary[
            torch.UntypedStorage, dict[_Key, weakref.ref[_Held]]
        ] = weakref.WeakKeyDictionary()
        self._in_order: weakref.WeakValueDictionary[int, _Held] = weakref.WeakValueDictionary()
        self._writing: list[weakref.ref[_Held]] = []
        self._ahead: weakref.WeakSet[_Held] = weakref.WeakSet()

    def pack(self, tensor: torch.Tensor) -> _Saved:
        """What autograd keeps instead of the tensor."""
        with torch.no_grad():
            value = self._movable(tensor)
            held = None if value is None else self._hold(tensor, value)
            own = tensor.detach()
            kept = own if held is None else None
            self.num_kept += held is None
            start = _start_of(own)
            return _Saved(
                kept=kept,
                held=held,
                size=tuple(own.shape),
                stride=own.stride() if _has_strides(own) else (),
                dtype=own.dtype,
                offset_bytes=start - held.start_bytes if held is not None else 0,
                witness=own if held is None else _without_memory(own),
                version=tensor._version,
            )

    def unpack(self, saved: _Saved) -> torch.Tensor:
        """The tensor, when autograd wants it."""
        if saved.witness._version != saved.version:
            raise SavedTensorModifiedError(
                description=_described(saved.size, saved.dtype),
                saved_version=saved.version,
                version=saved.witness._version,
            )
        if saved.kept is not None:
            return saved.kept
        held = saved.held
        assert held is not None, "bug in legroom: a saved tensor that is nowhere"
        with torch.no_grad():
            storage, start_bytes = held.in_memory() or self._read(held)
            self._read_ahead(held)
            bare = torch.empty(0, dtype=saved.dtype, device=storage.device)
            offset = (start_bytes + saved.offset_bytes) // saved.dtype.itemsize
            return bare.set_(storage, offset, saved.size, saved.stride)

    def _movable(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What to put on the tier for this tensor; None to keep it. See rules 2 and 3."""
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type == "meta":
            return None
        base = tensor if tensor._base is None else tensor._base
        if base.is_leaf and base.requires_grad:
            return None
        value = tensor.detach()
        reason = tiers.why_not_plain(tensor)
        if reason:
            if not _is_part_of_storage(tensor):
                return None
            storage = tensor.untyped_storage()
            bare = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            value = bare.set_(storage, 0, (storage.nbytes(),), (1,))
        num_bytes = value.numel() * value.dtype.itemsize
        return value if num_bytes >= max(1, self._min_bytes) else None

    def _hold(self, tensor: torch.Tensor, value: torch.Tensor) -> _Held:
        num_bytes = value.numel() * value.dtype.itemsize
        key = (tensor._version, _start_of(value), num_bytes, value.dtype)
        with self._lock:
            known = self._known.setdefault(value.untyped_storage(), {})
            reference = known.get(key)
            held = reference() if reference is not None else None
            if held is not None:
                self.num_shared += 1
                return held
            held = self._put(value)
            known[key] = weakref.ref(held)
            self._in_order[held.serial] = held
            self._writing.append(weakref.ref(held))
        self._settle_oldest()
        return held

    def _put(self, value: torch.Tensor) -> _Held:
        encoding = encoding_for(value, self._encodings)
        form = value
        if encoding is not None:
            with torch.autocast(value.device.type, enabled=False):
                form = encoding.put(value)
        held = _Held(value, form, encoding, self.num_moved)
        label = f"saved tensor {held.serial}, {_described(*held.layout[::2])}"
        held.ticket = self._tier.put(form, label=label)
        self.num_moved += 1
        self.moved_bytes += held.num_bytes
        return held

    def _settle_oldest(self) -> None:
        """See Note [Saved tensors], rule 6."""
        while True:
            with self._lock:
                writing = [held for held in (ref() for ref in self._writing) if held is not None]
                is_within = sum(held.num_bytes for held in writing) <= self._in_flight_bytes
                oldest = writing[:0] if is_within else writing[:1]
                self._writing = [weakref.ref(held) for held in writing[len(oldest) :]]
            if not oldest:
                return
            (held,) = oldest
            held.ticket = self._tier.settle(held.ticket)

    def _read(self, held: _Held) -> tuple[torch.UntypedStorage, int]:
        self._fetch(held)
        self._read_ahead(held)
        value = self._tier.get(held.ticket, *held.put_layout)
        with self._lock:
            held.is_fetched = False
            self._ahead.discard(held)
        if held.encoding is not None:
            with torch.autocast(value.device.type, enabled=False):
                value = held.encoding.get(value, *_as_lists(held.layout))
        storage = value.untyped_storage()
        held.back = weakref.ref(storage)
        return storage, 0

    def _fetch(self, held: _Held) -> None:
        with self._lock:
            if held.is_fetched:
                return
            held.ticket = self._tier.fetch(held.ticket)
            held.is_fetched = True

    def _read_ahead(self, held: _Held) -> None:
        """Start to read what was saved before it; what fails here is said when it is wanted."""
        for serial in range(held.serial - 1, max(-1, held.serial - _LOOKED_AT), -1):
            earlier = self._in_order.get(serial)
            if earlier is None or earlier.is_fetched or earlier.in_memory() is not None:
                continue
            with self._lock:
                if sum(each.num_bytes for each in self._ahead) >= self._ahead_bytes:
                    return
                self._ahead.add(earlier)
            try:
                self._fetch(earlier)
            except TierError:
                with self._lock:
                    self._ahead.discard(earlier)
                return


@contextlib.contextmanager
def offload(
    *,
    tier: str | tiers.AbstractTier = "disk",
    min_bytes: int = _MIN_BYTES,
    shrink: str | tuple[str, ...] | None = None,
    synchronous: bool = False,
    in_flight_bytes: int = _IN_FLIGHT_BYTES,
    ahead_bytes: int = _AHEAD_BYTES,
) -> Iterator[Offloading]:
    """Inside, what autograd saves for backward is moved to a tier. Backward may come after it.

    For models, or parts of them, that cannot be captured; `legroom.fit` moves only what is worth
    it. Every tensor is written and read once, so a step takes at least as long as that.

    Args:
        tier: A name from `legroom tiers`, or a tier that is open.
        min_bytes: Smaller tensors stay.
        shrink: Names of encodings from `legroom ways`: each tensor is put there in the form of the
            first that makes it smaller. Those that are lossy change gradients.
        synchronous: Whether every write and read is waited for, to find an error's cause.
        in_flight_bytes: So much may wait to be written, and is in memory meanwhile.
        ahead_bytes: So much is read before backward wants it.

    Raises:
        UsageError: An option is wrong.
        TierError: The tier cannot be opened or is full. In backward: what was moved is lost.

    Limits: what is changed through `.data` counts as unchanged: backward gets what was saved
    first. Of nested uses, the inner one counts.
    """
    for name, value in (
        ("min_bytes", min_bytes),
        ("in_flight_bytes", in_flight_bytes),
        ("ahead_bytes", ahead_bytes),
    ):
        if not isinstance(value, int) or value < 0:
            raise UsageError(f"{name} is {value!r}; it is a number of bytes, 0 or more")
    encodings = choose_encodings(shrink)
    session = Offloading(
        _open_tier(tier, synchronous=synchronous),
        min_bytes=min_bytes,
        encodings=encodings,
        in_flight_bytes=in_flight_bytes,
        ahead_bytes=ahead_bytes,
    )
    with saved_tensors_hooks(session.pack, session.unpack):
        yield session


def _open_tier(tier: str | tiers.AbstractTier, *, synchronous: bool) -> tiers.AbstractTier:
    if not isinstance(tier, str):
        return tier
    if synchronous and tiers.get(tier) is tiers.Disk:
        return tiers.Disk.open(synchronous=True)
    return tiers.current(tier)


def _is_part_of_storage(tensor: torch.Tensor) -> bool:
    """Whether size, strides and offset say which bytes of its storage it has, and that is all."""
    if not _has_strides(tensor) or tensor.is_quantized:
        return False
    return not (tensor.is_conj() or tensor.is_neg())


def _start_of(tensor: torch.Tensor) -> int:
    """In bytes, in its storage."""
    return int(tensor.storage_offset()) * tensor.dtype.itemsize if _has_strides(tensor) else 0


def _has_strides(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided


def _layout_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def _as_lists(
    layout: tuple[tuple[int, ...], tuple[int, ...], torch.dtype],
) -> tuple[list[int], list[int], torch.dtype]:
    """As operations of PyTorch's want it."""
    size, stride, dtype = layout
    return list(size), list(stride), dtype


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    """An alias that has the tensor's counter of versions and nothing of its memory."""
    alias = tensor.detach()
    alias.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return alias


def _described(size: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(size)}"
