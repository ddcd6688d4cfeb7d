"""What training steps computed, so that two runs can be compared: digests, and values on disk.

In comes a running training loop; out comes a `Recording`: for each step its losses, gradients right
before the update, and parameters, buffers, optimizer state and random states after it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.optim import Optimizer

from legroom.capture import AbstractTrainingObserver, BackwardCall
from legroom.engine._state_names import Named, StateNames, random_states

LOSSES, GRADIENTS, BUFFERS = "losses", "gradients", "buffers"
PARAMETERS, STATES, RANDOM = "parameters", "optimizer state", "random states"
KINDS = (LOSSES, GRADIENTS, BUFFERS, PARAMETERS, STATES, RANDOM)
"""In the order in which a step makes them."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_VALUES, _ENTRIES = "values.bin", "steps.json"


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor at one moment.

    Attributes:
        key: Equal in two runs for what is to be compared.
        digest: Of its shape, type and bits.
        offset: Where its bits begin in the file of values; None if they were not kept.
    """

    kind: str
    key: str
    name: str
    module: str
    digest: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    offset: int | None


@final
class Recording:
    """Steps that were recorded in a folder.

    Attributes:
        steps: For each step, what it made.
    """

    def __init__(self, folder: Path, steps: list[list[Entry]]) -> None:
        self.steps = steps
        self._folder = folder

    @classmethod
    def load(cls, folder: Path) -> Recording:
        """What a `Recorder` has saved there."""
        data = json.loads((folder / _ENTRIES).read_text())
        steps = [[Entry(**{**e, "shape": tuple(e["shape"])}) for e in step] for step in data]
        return cls(folder, steps)

    def value(self, entry: Entry) -> torch.Tensor | None:
        """What it held, as numbers of double precision; None if that was not kept."""
        if entry.offset is None:
            return None
        with open(self._folder / _VALUES, "rb") as file:
            file.seek(entry.offset)
            bits = bytearray(file.read(entry.num_bytes))
        dtype = getattr(torch, entry.dtype)
        if not bits:
            return torch.empty(entry.shape, dtype=torch.float64)
        flat = torch.frombuffer(bits, dtype=torch.uint8).view(dtype)
        return flat.to(torch.complex128 if dtype.is_complex else torch.float64)


@final
class Recorder(AbstractTrainingObserver):
    """Records what a training loop computes; hears of it as an observer of a `StepFinder`.

    Nothing is allocated by PyTorch for it on a CPU, so a step that is being measured measures the
    same. Digests of bits tell equal from different; values tell how different.

    Args:
        folder: Where to write; empty.
        most_bytes: Values are kept up to so many bytes; from there on digests alone.
        models: What to record; none: what the optimizers of the program update.
        most_steps: After so many nothing is recorded any more; None: all are.

    Attributes:
        num_steps: Steps recorded.
        unreadable: Names of tensors whose bits cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        *,
        most_bytes: int,
        models: Iterable[nn.Module] = (),
        most_steps: int | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.unreadable: dict[str, None] = {}
        self._folder = folder
        self._values = open(folder / _VALUES, "wb")  # noqa: SIM115 - closed by save()
        self._room_bytes = most_bytes
        self._models = tuple(models)
        self._most_steps = most_steps
        self._names = StateNames()
        self._steps: list[list[Entry]] = [[]]
        self._seen: Counter[tuple[str, str]] = Counter()
        self._has_gradients = False
        self._num_backwards = 0

    @property
    def num_steps(self) -> int:
        """Steps recorded."""
        return len(self._steps) - 1

    @property
    def is_full(self) -> bool:
        """Whether all steps that were asked for are recorded."""
        return self._most_steps is not None and self.num_steps >= self._most_steps

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """Optimizers are numbered in the order in which they are made."""
        self._names.add_optimizer(optimizer)

    def optimizer_starts(self, optimizer: Optimizer) -> None:
        """Gradients are complete."""
        if self.is_full:
            return
        self._names.add_optimizer(optimizer)
        self._names.learn(self._models)
        self._has_gradients = True
        self._num_backwards = 0
        self._add_all(GRADIENTS, self._names.gradients(optimizer))

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        """Of an update that calls back for the loss, as under Lightning, gradients are made now."""
        if self._num_backwards and not self.is_full:
            self._names.learn(self._models)
            self._add_all(GRADIENTS, self._names.gradients(optimizer))

    @contextlib.contextmanager
    def around_backward(self, call: BackwardCall) -> Iterator[None]:
        """What gradients are taken of is a loss; what is traced on fake tensors is none."""
        self._num_backwards += 1
        fakes = FakeTensor | FunctionalTensor
        roots = [each for each in call.roots if not (self.is_full or isinstance(each, fakes))]
        for number, root in enumerate(roots):
            name = "loss" if not number else f"loss_{number}"
            self._add(LOSSES, Named(name, name, "", root.detach()))
        yield

    def step_ends(self) -> None:
        """Record what the step has left."""
        if self.is_full:
            return
        self._names.learn(self._models)
        if not self._has_gradients:
            self._add_all(GRADIENTS, self._names.gradients())
        self._add_all(BUFFERS, self._names.buffers())
        self._add_all(PARAMETERS, self._names.parameters())
        self._add_all(STATES, self._names.optimizer_states())
        for owner, state in random_states():
            self._note(RANDOM, owner, owner, "", _Bits((), "", state, is_value=False))
        self._steps.append([])
        self._seen.clear()
        self._has_gradients = False

    def save(self) -> Recording:
        """Write everything; nothing can be recorded afterwards."""
        self._values.close()
        steps = self._steps[:-1]
        text = json.dumps([[asdict(entry) for entry in step] for step in steps])
        (self._folder / _ENTRIES).write_text(text)
        return Recording(self._folder, steps)

    def _add_all(self, kind: str, found: Iterable[Named]) -> None:
        for each in found:
            self._add(kind, each)

    def _add(self, kind: str, each: Named) -> None:
        try:
            bits = _bits_of(each.tensor)
        except (RuntimeError, TypeError, KeyError, NotImplementedError):
            self.unreadable[each.name] = None
            return
        self._note(kind, each.key, each.name, each.module, bits)

    def _note(self, kind: str, key: str, name: str, module: str, bits: _Bits) -> None:
        times = self._seen[kind, key]
        self._seen[kind, key] += 1
        content = bits.content
        digest = hashlib.blake2b(f"{bits.shape} {bits.dtype}".encode(), digest_size=16)
        digest.update(content)
        num_bytes = len(content)
        offset = None
        if bits.is_value and num_bytes <= self._room_bytes:
            self._room_bytes -= num_bytes
            offset = self._values.tell()
            self._values.write(content)
        again = f" ({times + 1})" if times else ""
        self._steps[-1].append(
            Entry(
                kind=kind,
                key=key + again,
                name=name + again,
                module=module,
                digest=digest.hexdigest(),
                shape=bits.shape,
                dtype=bits.dtype,
                num_bytes=num_bytes,
                offset=offset,
            )
        )


@dataclass(frozen=True)
class _Bits:
    """A tensor outside PyTorch.

    Attributes:
        is_value: Whether the bits are numbers of `dtype`.
    """

    shape: tuple[int, ...]
    dtype: str
    content: Any
    is_value: bool = True


def _bits_of(tensor: torch.Tensor) -> _Bits:
    dtype = str(tensor.dtype).removeprefix("torch.")
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        return _sparse_bits(tensor, dtype)
    return _Bits(tuple(tensor.shape), dtype, _raw(tensor))


def _sparse_bits(tensor: torch.Tensor, dtype: str) -> _Bits:
    if not tensor.is_sparse:
        raise TypeError(f"layout {tensor.layout}")
    content = bytes(_raw(tensor._indices())) + bytes(_raw(tensor._values()))
    return _Bits(tuple(tensor.shape), dtype, content, is_value=False)


def _raw(tensor: torch.Tensor) -> Any:
    """The bits in order of the elements; NumPy's own memory where they do not lie so."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    bits = tensor.cpu().view(_INTEGERS[tensor.element_size()]).numpy()
    return np.ascontiguousarray(bits).reshape(-1).view(np.uint8).data
