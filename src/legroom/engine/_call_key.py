"""What a plan for a call depends on: the shapes it is given, how the model and PyTorch are set.

In go a module and the arguments of a call; out comes a key that is equal for calls that one plan
serves. What it cannot see (a hook, an attribute), TorchDynamo does: it makes another graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from legroom.capture import autocast_settings, backward_habit

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
        """The shapes, for people; scalars have none."""
        shapes = ("x".join(map(str, shape)) for shape in self.shapes if shape)
        return ", ".join(shapes) or ("scalars only" if self.shapes else "no tensors")

    def difference_from(self, other: CallKey) -> str:
        """What a plan of its own is for, beside another kind's: `"shapes"`, `"dtypes"`, …."""
        differs = ["shapes"] if self.shapes != other.shapes else []
        settings = zip(_SETTINGS, self.structure, other.structure, strict=False)
        differs += [name for name, mine, theirs in settings if mine != theirs]
        if self._dtypes != other._dtypes:
            differs.append("dtypes")
        return ", ".join(differs) or "arguments"

    @property
    def _dtypes(self) -> list[Any]:
        leaves = self.structure[len(_SETTINGS) :]
        return [leaf[0] for leaf in leaves if isinstance(leaf, tuple)]


_SETTINGS = ("arguments", "autocast", "train or eval mode", "frozen parameters")
"""What the structure begins with."""


def call_key(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallKey:
    """The key of a call of the module with these arguments, now."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    structure: list[Any] = [str(spec), _autocast(), *_settings(module)]
    shapes = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            structure.append((leaf.dtype, leaf.device, leaf.requires_grad, leaf.dim()))
            shapes.append(tuple(leaf.shape))
        else:
            structure.append(leaf if isinstance(leaf, _PLAIN) else _type_name(leaf))
    return CallKey(tuple(structure), tuple(shapes))


def _type_name(value: object) -> str:
    """By name: a key may be sent to another process."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _settings(module: nn.Module) -> tuple[Any, Any]:
    """What is trained and what evaluates: parts may be frozen and thawed while training goes on.

    Looked at in every call: `modules()` and `parameters()` take several times as long.
    """
    modules, parameters = [module], []
    seen, seen_parameters = {id(module)}, set()
    for each in modules:
        for parameter in each._parameters.values():
            if parameter is not None and id(parameter) not in seen_parameters:
                seen_parameters.add(id(parameter))
                parameters.append((parameter.shape, parameter.dtype, parameter.requires_grad))
        for child in each._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                modules.append(child)
    return tuple([each.training for each in modules]), tuple(parameters)


def _autocast() -> tuple[Any, ...]:
    """Where it is on, with whether backward will be under it too."""
    settings = autocast_settings()
    return (*settings, backward_habit.is_under_autocast) if settings else ()
