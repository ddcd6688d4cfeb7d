"""The registry of training workloads: give a name, get the module that builds that case.

A module is imported only when its case is asked for, so listing the names costs nothing.
"""

import difflib
import importlib
from types import ModuleType
from typing import Any

from benchmarks.cases._case import Case, SizeFieldError, UnknownCaseError, UnknownSizeError

__all__ = [
    "Case",
    "SizeFieldError",
    "UnknownCaseError",
    "UnknownSizeError",
    "build",
    "load",
    "names",
]

_NAMES: tuple[str, ...] = (
    "gpt2",
    "llama",
    "bert",
    "resnet50",
    "unet3d",
    "vit",
    "lstm_nmt",
    "deepspeech2",
    "wgan_gp",
    "mixtral",
    "dlrm",
    "diffusion",
)


def names() -> tuple[str, ...]:
    """Names of all cases, in the order in which results list them."""
    return _NAMES


def load(name: str) -> ModuleType:
    """The module of a case, with its `SIZES` and its `build(size, seed=..., **changes)`.

    Raises:
        UnknownCaseError: There is no case of that name.
    """
    if name not in _NAMES:
        near = difflib.get_close_matches(name, _NAMES, n=1)
        hint = f". Did you mean {near[0]!r}?" if near else ""
        raise UnknownCaseError(f"unknown case {name!r}; available: {', '.join(_NAMES)}{hint}")
    return importlib.import_module(f"{__name__}.{name}")


def build(name: str, size: str = "small", *, seed: int = 0, **changes: Any) -> Case:
    """A case ready to step: `load(name).build(size, seed=seed)`.

    Args:
        changes: Fields of the size to change, as `batch=16`.
    """
    case: Case = load(name).build(size, seed=seed, **changes)
    return case
