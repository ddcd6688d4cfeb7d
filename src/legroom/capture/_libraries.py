"""Libraries whose models take another path under TorchDynamo than in eager PyTorch.

In comes `same_path_as_eager()` around capture; out come graphs of what eager would run. See Note
[Eager's path].
"""

# Note [Eager's path]
# 1. transformers asks whether it is being traced, and if so builds masks that eager leaves out,
#    calls other kernels for experts, or scans where eager loops: other bits, more memory. While we
#    are open, everything in it that asks is told no.
# 2. Except where the answer decides about no computation: warnings, checks, caches of Python
#    objects. There, TorchDynamo needs the other path, or the graph would end.
# 3. Eager then looks at values: is there padding in the mask, are several sequences packed into a
#    row? They are answered while tracing; see Note [Known values].
# 4. PyTorch itself replaces some operations while it is traced, interpolation above all, by several
#    others with other bits. Those replacements are taken out of its tables.
# 5. TorchDynamo's guards compare functions by identity, so what stands in for one is made once.

from __future__ import annotations

import abc
import contextlib
import functools
import itertools
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple, final

import torch
from torch._C import DispatchKey
from torch._ops import OpOverload

_KEPT_WHOLE = ("upsample_", "_upsample_", "hardshrink", "softshrink")
"""Operations of rule 4, by how their names begin."""

_ASKED_IN = "transformers.utils.import_utils"
_ASKS = ("is_torchdynamo_compiling", "is_tracing")
_DECIDES_NOTHING = (
    "transformers.cache_utils",
    "transformers.file_utils",
    "transformers.generation.",
    "transformers.image_processing",
    "transformers.integrations.flex_attention",
    "transformers.integrations.hub_kernels",
    "transformers.modeling_flash_attention_utils",
    "transformers.modeling_utils",
    "transformers.pytorch_utils",
    "transformers.utils",
)
"""Modules of rule 2, by how their names begin."""


class _Patch(NamedTuple):
    owner: ModuleType
    name: str
    original: Any
    replacement: Any


class _WhileUsed(abc.ABC):
    """What is replaced while somebody needs it, however many do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_users = 0

    def __enter__(self) -> None:
        with self._lock:
            self._num_users += 1
            if self._num_users == 1:
                self._replace()

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._num_users -= 1
            if self._num_users == 0:
                self._put_back()

    @abc.abstractmethod
    def _replace(self) -> None:
        """The first has come."""

    @abc.abstractmethod
    def _put_back(self) -> None:
        """The last has gone."""


@final
class _EagersAnswers(_WhileUsed):
    """Rules 1 to 3; functions are looked for again only after something was imported."""

    def __init__(self) -> None:
        super().__init__()
        self._known_modules: tuple[int, str] | None = None
        self._patches: list[_Patch] = []

    def _replace(self) -> None:
        self._find()
        for owner, name, _, replacement in self._patches:
            setattr(owner, name, replacement)

    def _put_back(self) -> None:
        for owner, name, original, _ in self._patches:
            setattr(owner, name, original)

    def _find(self) -> None:
        known = len(sys.modules), next(reversed(sys.modules))
        if known != self._known_modules:
            self._known_modules = known
            self._patches = [*_questions(), *_readers()]


@final
class _EagersOperations(_WhileUsed):
    """Rule 4."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: list[tuple[OpOverload, dict[Any, Any]]] = []

    def _replace(self) -> None:
        self._taken = _take_out_replacements()

    def _put_back(self) -> None:
        _put_in_replacements(self._taken)


_eagers_answers = _EagersAnswers()
_eagers_operations = _EagersOperations()


@contextlib.contextmanager
def same_path_as_eager() -> Iterator[None]:
    """Keep libraries from another path under TorchDynamo than in eager, while it traces."""
    with _eagers_answers, _eagers_operations:
        yield


def same_answers_as_eager() -> contextlib.AbstractContextManager[None]:
    """The part of it that guards look at, so that it is needed at every call. Cheap to enter."""
    return _eagers_answers


def _questions() -> Iterator[_Patch]:
    """Whoever asks whether it is traced, in modules where the answer matters."""
    asked = sys.modules.get(_ASKED_IN)
    originals = {name: vars(asked).get(name) for name in _ASKS} if asked else {}
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith("transformers") or module_name.startswith(_DECIDES_NOTHING):
            continue
        for name, original in originals.items():
            if original is not None and vars(module).get(name) is original:
                yield _Patch(module, name, original, _answer_no)


def _answer_no(tensor: Any = None) -> bool:
    return False


# Values ------------------------------------------------------------------------------------------


def _readers() -> Iterator[_Patch]:
    """Functions that look at values; see Note [Eager's path], rule 3."""
    if "transformers.masking_utils" in sys.modules:
        for (module_name, name), make in _READERS.items():
            module = sys.modules.get(module_name)
            original = None if module is None else vars(module).get(name)
            if module is not None and original is not None:
                yield _Patch(module, name, original, make(original))


@functools.cache
def _causal(original: Callable[..., Any]) -> Callable[..., Any]:
    from legroom.capture._known_values import is_known_full

    def can_skip(padding_mask: Any, q_length: int, kv_length: int, *args: Any, **rest: Any) -> Any:
        if padding_mask is not None:
            is_full = is_known_full(padding_mask)
            if is_full:
                padding_mask = None
            elif is_full is False and padding_mask.shape[-1] == kv_length == q_length:
                return False
        return original(padding_mask, q_length, kv_length, *args, **rest)

    return can_skip


@functools.cache
def _bidirectional(original: Callable[..., Any]) -> Callable[..., Any]:
    from legroom.capture._known_values import is_known_full

    def can_skip(padding_mask: Any, *args: Any, **rest: Any) -> Any:
        if padding_mask is not None:
            is_full = is_known_full(padding_mask)
            if is_full:
                padding_mask = None
            elif is_full is False:
                return False
        return original(padding_mask, *args, **rest)

    return can_skip


@functools.cache
def _packed(original: Callable[..., Any]) -> Callable[..., Any]:
    from legroom.capture._known_values import is_known_as_one_sequence

    def find(position_ids: Any) -> Any:
        if is_known_as_one_sequence(position_ids):
            return None
        return original(position_ids)

    return find


@functools.cache
def _bincount(original: Callable[..., Any]) -> Callable[..., Any]:
    from legroom.capture._known_values import count_below, is_known_below

    def bincount(input: Any, weights: Any = None, minlength: int = 0) -> Any:
        if weights is None and is_known_below(input, minlength):
            return count_below(input, minlength)
        return original(input, weights, minlength)

    return bincount


_READERS: dict[tuple[str, str], Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    ("transformers.masking_utils", "_ignore_causal_mask_sdpa"): _causal,
    ("transformers.masking_utils", "_ignore_bidirectional_mask_sdpa"): _bidirectional,
    ("transformers.masking_utils", "find_packed_sequence_indices"): _packed,
    ("torch", "bincount"): _bincount,  # of experts that a router chose
}


# Operations --------------------------------------------------------------------------------------


@functools.cache
def _kept_whole() -> tuple[OpOverload, ...]:
    names = [name for name in dir(torch.ops.aten) if name.startswith(_KEPT_WHOLE)]
    packets: list[Any] = [getattr(torch.ops.aten, name) for name in names]
    return tuple(getattr(packet, name) for packet in packets for name in packet.overloads())


def _take_out_replacements() -> list[tuple[OpOverload, dict[Any, Any]]]:
    """See Note [Eager's path], rule 4; what was taken out."""
    taken = []
    for operation in _kept_whole():
        kernels = operation.py_kernels
        found = {key: kernels.pop(key) for key in _REPLACING_KEYS if key in kernels}
        if found:
            operation._dispatch_cache.clear()
            taken.append((operation, found))
    return taken


def _put_in_replacements(taken: list[tuple[OpOverload, dict[Any, Any]]]) -> None:
    for operation, kernels in taken:
        operation.py_kernels.update(kernels)
        operation._dispatch_cache.clear()


_REPLACING_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


# Logging -----------------------------------------------------------------------------------------


def logging_functions() -> set[Callable[..., Any]]:
    """Functions that only log: TorchDynamo may leave them out instead of ending a graph there."""
    names = ("debug", "info", "warning", "error", "critical", "log", "warning_once", "info_once")
    owners = [logging.Logger, sys.modules.get("transformers.utils.logging")]
    found = itertools.product(owners, names)
    return {function for owner, name in found if callable(function := getattr(owner, name, None))}
