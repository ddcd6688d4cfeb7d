"""What a plan for a call depends on: the shapes that it is given, and how PyTorch is set.

In go the arguments of a call; out comes a key that is equal for calls that one plan serves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch.utils import _pytree as pytree

_PLAIN = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device)


@final
@dataclass(frozen=True, slots=True)
class CallKey:
    """Equal for calls that one plan serves.

    Attributes:
        structure: Everything but sizes: names, types, dtypes, settings.
        shapes: The shape of each tensor.
    """

    structure: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...]

    def is_within(self, other: CallKey) -> bool:
        """Whether the same call with no dimension larger: what fits the other fits this."""
        return self.structure == other.structure and all(
            len(mine) == len(theirs) and all(a <= b for a, b in zip(mine, theirs, strict=True))
            for mine, theirs in zip(self.shapes, other.shapes, strict=True)
        )

    @property
    def in_words(self) -> str:
        """The shapes, for people."""
        return ", ".join("x".join(map(str, shape)) for shape in self.shapes) or "no tensors"


def call_key(args: tuple[Any, ...], kwargs: dict[str, Any], *, is_training: bool) -> CallKey:
    """The key of a call with these arguments, now."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    structure: list[Any] = [str(spec), is_training, _autocast()]
    shapes = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            structure.append((leaf.dtype, leaf.device, leaf.requires_grad, leaf.dim()))
            shapes.append(tuple(leaf.shape))
        else:
            structure.append(leaf if isinstance(leaf, _PLAIN) else type(leaf))
    return CallKey(tuple(structure), tuple(shapes))


def _autocast() -> tuple[Any, ...]:
    return tuple(
        (device, torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    )
