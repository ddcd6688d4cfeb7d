"""Which encodings a user named for tensors on their way to a tier.

In go names; out come encodings that can do without knowing how a tensor is made and read.
"""

from __future__ import annotations

import torch

from legroom import ways
from legroom.capture import Kind, TensorInfo
from legroom.errors import UsageError


def choose_encodings(
    shrink: str | tuple[str, ...] | None,
) -> tuple[type[ways.AbstractEncoding], ...]:
    """The encodings of these names, in order.

    Raises:
        UnknownNameError: A name is not known.
        UsageError: One is no encoding, or needs a plan to be used.
    """
    wanted = (shrink,) if isinstance(shrink, str) else tuple(shrink or ())
    chosen = []
    for name in wanted:
        way = ways.get(name)
        if not _is_usable(way):
            raise UsageError(
                f"shrink={name!r} cannot be used on saved tensors: it is no encoding, or must know "
                f"how a tensor is made and read; allowed: {', '.join(_usable_names())}.\n"
                "  try: legroom.fit, whose plan knows that"
            )
        assert issubclass(way, ways.AbstractEncoding), "bug in legroom: not an encoding"
        chosen.append(way)
    return tuple(chosen)


def encoding_for(
    tensor: torch.Tensor, encodings: tuple[type[ways.AbstractEncoding], ...]
) -> type[ways.AbstractEncoding] | None:
    """The first that makes this tensor, which lies densely, smaller."""
    num_bytes = tensor.numel() * tensor.dtype.itemsize
    info = TensorInfo(
        index=0,
        name="",
        num_bytes=num_bytes,
        kind=Kind.STASH,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
    )
    for way in encodings:
        held_bytes = way.held_bytes(info, ())
        if held_bytes is not None and held_bytes < num_bytes:
            return way
    return None


def _is_usable(way: type[ways.AbstractWay]) -> bool:
    if not issubclass(way, ways.AbstractEncoding) or way.readers_only:
        return False
    return way.about.__func__ is ways.AbstractEncoding.about.__func__  # type: ignore[attr-defined]


def _usable_names() -> tuple[str, ...]:
    return tuple(name for name in ways.names() if _is_usable(ways.get(name)))
