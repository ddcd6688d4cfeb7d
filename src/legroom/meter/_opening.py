"""The opening balance: every storage that is alive before a recording begins.

In goes the running process; out comes one entry per storage with what it is (a weight, a gradient,
optimizer state, kept by an old graph, or data). The allocator's events tell of births and deaths
from here on; what was born earlier must be found by looking.

See Note [Opening balance].
"""

# Note [Opening balance]
# 1. CPU: PyTorch reports no release of a block that was allocated before profiling began. So each
#    opening storage gets a finalizer that marks its death in the event stream.
# 2. Found: tensors that Python's garbage collector tracks, their `.grad`, and what the graphs
#    behind them keep. A tensor that only C++ holds is not found.
# 3. Memory that PyTorch neither allocated nor mapped (NumPy arrays) is not in its events, so it
#    is not in our books; its bytes are reported beside them. Such storages cannot be resized.
#    Neither can PyTorch's own once `.numpy()` was called on them, so this is held against data
#    only, not against weights, gradients, state and stash. Shared memory is mapped by PyTorch
#    and reported.

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.optim import Optimizer

from legroom.capture import (
    Heap,
    Kind,
    graph_of,
    nested_tensors,
    saved_tensors,
    scan_heap,
    shape_and_dtype,
)


@dataclass(frozen=True, slots=True)
class OpeningStorage:
    """A storage that was alive when the recording began.

    Attributes:
        address: Where it begins.
        kind: What it is; INPUTS for everything that is nothing else.
        owner: Identity of the parameter that it is, or belongs to; 0 if none.
        suffix: What it is to its owner: `".grad"`, `".exp_avg"`; `""` for the parameter itself.
        is_shared: Whether other processes may see it: memory that PyTorch has mapped.
        keepers: Nodes and fields of old graphs that keep it.
    """

    address: int
    num_bytes: int
    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    owner: int = 0
    suffix: str = ""
    is_shared: bool = False
    keepers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class OpeningBalance:
    """All opening storages, and memory that is not PyTorch's own.

    Attributes:
        foreign: Bytes of storages that PyTorch did not allocate, by address.
        watches: Finalizers that tell of each storage's death; `close` ends them.
    """

    storages: tuple[OpeningStorage, ...]
    foreign: dict[int, int] = field(default_factory=dict)
    watches: tuple[weakref.finalize[..., object], ...] = ()

    def close(self) -> None:
        """Watch no longer: what is called on a death is let go, with all that it holds."""
        for watch in self.watches:
            watch.detach()

    @property
    def total_bytes(self) -> int:
        """Bytes of the storages that PyTorch's allocator handed out."""
        return sum(storage.num_bytes for storage in self.storages)


def take_opening_balance(
    heap: Heap, device: torch.device, *, on_freed: Callable[[int], None]
) -> OpeningBalance:
    """Look at everything alive on `device`, and have `on_freed(address)` called when it dies."""
    found: dict[int, OpeningStorage] = {}
    foreign: dict[int, int] = {}
    keepers: dict[int, list[tuple[str, str]]] = defaultdict(list)
    watches: list[weakref.finalize[..., object]] = []
    for kind, whole, owner, suffix, keeper in _live_tensors(heap):
        for tensor, storage in storages_of(whole, device):
            address = storage.data_ptr()
            if keeper is not None and keeper not in keepers[address]:
                keepers[address].append(keeper)
            if address in found or address in foreign:
                continue
            is_shared = storage.is_shared()
            if kind is Kind.INPUTS and not storage.resizable() and not is_shared:
                foreign[address] = storage.nbytes()
                continue
            watches.append(weakref.finalize(storage, on_freed, address))
            watches[-1].atexit = False
            shape, dtype = shape_and_dtype(tensor)
            found[address] = OpeningStorage(
                address,
                storage.nbytes(),
                kind,
                shape,
                dtype,
                owner,
                suffix,
                is_shared,
            )
    storages = (replace(each, keepers=tuple(keepers[each.address])) for each in found.values())
    return OpeningBalance(tuple(storages), foreign, tuple(watches))


_WITHOUT_MEMORY = frozenset({"FakeTensor", "FunctionalTensor"})
"""Tensor classes of torch.compile that say where they would be and are nowhere."""


def storages_of(
    tensor: torch.Tensor, device: torch.device
) -> list[tuple[torch.Tensor, torch.UntypedStorage]]:
    """The storages with real memory on this device behind a tensor.

    One for a dense tensor, one per component for a sparse one; none for fake, meta and opaque
    tensors.
    """
    if tensor.device.type != device.type or type(tensor).__name__ in _WITHOUT_MEMORY:
        return []
    if device.index is not None and tensor.device.index not in (None, device.index):
        return []
    found = []
    for part in _components(tensor):
        try:
            storage = part.untyped_storage()
            if storage.nbytes() and storage.data_ptr():
                found.append((part, storage))
        except (RuntimeError, NotImplementedError):  # functorch, lazy parameters, nested tensors
            continue
    return found


def _components(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if tensor.is_nested and tensor.layout is torch.strided:
        sizes, strides = tensor._nested_tensor_size(), tensor._nested_tensor_strides()
        return tensor, sizes, strides, tensor._nested_tensor_storage_offsets()
    if tensor.layout is torch.strided:
        return (tensor,)
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()


def live_graph_tensors() -> list[torch.Tensor]:
    """Every live tensor that has an autograd graph behind it."""
    return [tensor for tensor in scan_heap().tensors if graph_of(tensor) is not None]


def state_tensors(optimizer: Optimizer) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Every tensor of an optimizer's state: its key, the tensor, and the parameter it is for."""
    for parameter, state in optimizer.state.items():
        for key, tensor in nested_tensors("", state):
            yield key, tensor, parameter


_Found = tuple[Kind, torch.Tensor, int, str, "tuple[str, str] | None"]


def _live_tensors(heap: Heap) -> Iterator[_Found]:
    """Live tensors, the most telling description of a storage first."""
    tensors, optimizers = heap.tensors, heap.optimizers
    for tensor in _weights(heap):
        yield Kind.WEIGHTS, tensor, id(tensor), "", None
    for tensor in tensors:
        gradient = tensor.grad if tensor.requires_grad and graph_of(tensor) is None else None
        if gradient is not None:
            yield Kind.GRADIENTS, gradient, id(tensor), ".grad", None
    for optimizer in optimizers:
        for key, tensor, parameter in state_tensors(optimizer):
            yield Kind.OPTIMIZER_STATE, tensor, id(parameter), f".{key}", None
    saved, _ = saved_tensors(tensors)
    for item in saved:
        yield Kind.STASH, item.tensor, 0, "", (item.node, item.field)
    for tensor in tensors:
        yield Kind.INPUTS, tensor, 0, "", None


def _weights(heap: Heap) -> Iterator[torch.Tensor]:
    for module in heap.modules:
        for table in ("_parameters", "_buffers"):
            owned = vars(module).get(table) or {}
            yield from (tensor for tensor in owned.values() if tensor is not None)
    for optimizer in heap.optimizers:
        for group in vars(optimizer).get("param_groups", ()):
            yield from group["params"]
    yield from (tensor for tensor in heap.tensors if isinstance(tensor, nn.Parameter))
