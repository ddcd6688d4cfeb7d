"""A running program's state, exchanged for fake tensors and later put back as it was.

In goes everything that training changes: parameters, buffers, gradients, optimizer state. While it
is exchanged, every reference to it holds a tensor with shape and type and no memory. Afterwards
the same objects hold the same bits. See Note [Exchange].
"""

# Note [Exchange]
# 1. The Python object stays, what is behind it changes: a list of parameters that somebody made
#    long ago is valid throughout.
# 2. What shares a storage shares one afterwards: tied weights, views of one flat buffer.
# 3. A parameter's gradient goes aside with it, because it belongs to what is behind the object.
# 4. Data stays real: its values may decide where the program goes. It is never written to, because
#    operations on it run on fake copies.
# 5. Containers are put back as well: attributes of modules, state of optimizers and schedulers.
#    What a program keeps elsewhere (a list of losses) keeps the fakes that were put there.

from __future__ import annotations

import collections
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from legroom.capture._autograd import is_leaf
from legroom.capture._heap import Heap, nested_tensors
from legroom.capture._kinds import Kind
from legroom.errors import TorchInterfaceError

_TESTED = "2.13.0"
_DEPTH = 5
_LONGEST = 100_000


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether the tensor has no memory."""
    return isinstance(tensor, FakeTensor)


def _state_of(heap: Heap) -> Iterator[tuple[Kind, torch.Tensor]]:
    for module in heap.modules:
        for table in ("_parameters", "_buffers"):
            owned = vars(module).get(table) or {}
            yield from ((Kind.WEIGHTS, tensor) for tensor in owned.values() if tensor is not None)
    for optimizer in heap.optimizers:
        for group in vars(optimizer).get("param_groups", ()):
            yield from ((Kind.WEIGHTS, tensor) for tensor in group["params"])
        for state in vars(optimizer).get("state", {}).values():
            yield from ((Kind.OPTIMIZER_STATE, tensor) for _, tensor in nested_tensors("", state))
    for tensor in heap.tensors:
        if _can_be_exchanged(tensor) and tensor.requires_grad:
            yield Kind.WEIGHTS, tensor


def _can_be_exchanged(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in (torch.Tensor, nn.Parameter, nn.Buffer)
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_meta
        and is_leaf(tensor)
    )


class ExchangedState:
    """The state of a program while fakes stand in for it; see Note [Exchange]."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        # Weakly: a gradient's stand-in must be able to die when the gradient does.
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._restore_containers: list[Callable[[], None]] = []
        self._restore_random: Callable[[], None] = _remember_random()
        self.left_real: list[torch.Tensor] = []

    def exchange(self, heap: Heap) -> Iterator[tuple[Kind, torch.Tensor]]:
        """Put fakes behind everything that training changes; yields each, with what it is."""
        torch.clear_autocast_cache()  # it refers to weights weakly: they could not be exchanged
        self._restore_containers.append(_leave_fast_path())
        for owner in (*heap.modules, *heap.optimizers, *heap.helpers):
            self._restore_containers.append(_remember(vars(owner), _DEPTH))
        state = {
            id(tensor): (kind, tensor)
            for kind, tensor in reversed(list(_state_of(heap)))
            if _can_be_exchanged(tensor)
        }
        for kind, tensor in state.values():
            gradient = tensor.grad
            is_dense = gradient is not None and gradient.layout is torch.strided
            fake_gradient = self._fake_of(gradient) if gradient is not None and is_dense else None
            aside = self._fake_of(tensor)
            if not exchange(tensor, aside):
                self.left_real.append(tensor)
                self._storages.pop(tensor.untyped_storage()._cdata, None)
                continue
            self._pairs.append((tensor, aside))
            _copy_hooks(aside, tensor)
            yield kind, tensor
            if fake_gradient is not None:
                tensor.grad = fake_gradient
                yield Kind.GRADIENTS, fake_gradient

    def storage_standing_for(self, real: torch.UntypedStorage) -> torch.UntypedStorage | None:
        """The fake storage in place of a real one that somebody still holds; None if none is."""
        stand_in = self._storages.get(real._cdata)
        return None if stand_in is None else stand_in()

    def put_back(self) -> None:
        """Put everything back as it was."""
        torch.clear_autocast_cache()
        stuck = [tensor for tensor, aside in reversed(self._pairs) if not exchange(tensor, aside)]
        self._pairs.clear()
        self._storages.clear()
        for restore in reversed(self._restore_containers):
            restore()
        self._restore_containers.clear()
        self._restore_random()
        assert not stuck, f"bug in legroom: {len(stuck)} tensors could not be put back"

    def _fake_of(self, real: torch.Tensor) -> torch.Tensor:
        storage = real.untyped_storage()
        with self._mode, torch.no_grad():
            stand_in = self.storage_standing_for(storage)
            if stand_in is None:
                count = storage.nbytes() // real.element_size()
                flat = torch.empty(count, dtype=real.dtype, device=real.device)
                stand_in = flat.untyped_storage()
                self._storages[storage._cdata] = weakref.ref(stand_in)
            fake = torch.empty(0, dtype=real.dtype, device=real.device)
            fake.set_(stand_in, real.storage_offset(), real.size(), real.stride())
            if isinstance(real, nn.Parameter):
                fake = nn.Parameter(fake, requires_grad=real.requires_grad)
            else:
                fake.requires_grad_(real.requires_grad)
        vars(fake).update(vars(real))
        return fake


def exchange(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Let two Python objects swap what is behind them: class, attributes and tensor.

    `torch.utils.swap_tensors` does the same and refuses where weak references to an object exist;
    ours stay valid, because the objects do. False, and nothing has changed, where PyTorch refuses:
    C++ holds a weak reference, as a live graph or a guard of torch.compile may.
    """
    swap: Any = getattr(torch._C, "_swap_tensor_impl", None)
    if swap is None:
        raise TorchInterfaceError("torch._C._swap_tensor_impl", tested=_TESTED)
    left.__class__, right.__class__ = right.__class__, left.__class__
    left.__dict__, right.__dict__ = right.__dict__, left.__dict__
    try:
        swap(left, right)
    except RuntimeError:
        left.__class__, right.__class__ = right.__class__, left.__class__
        left.__dict__, right.__dict__ = right.__dict__, left.__dict__
        return False
    return True


def _copy_hooks(source: torch.Tensor, target: Any) -> None:
    for hook in (getattr(source, "_backward_hooks", None) or {}).values():
        target.register_hook(hook)
    for hook in (getattr(source, "_post_accumulate_grad_hooks", None) or {}).values():
        target.register_post_accumulate_grad_hook(hook)


def _remember(container: Any, depth: int) -> Callable[[], None]:
    """Something that puts a container, and those in it, back to what they hold now."""
    inner = [
        _remember(item, depth - 1)
        for item in (container.values() if isinstance(container, dict) else container)
        if depth > 0 and _is_container(item)
    ]
    is_mapping = isinstance(container, dict)
    held = dict(container) if is_mapping else list(container)

    def restore() -> None:
        for restore_inner in inner:
            restore_inner()
        if _items(container) != _items(held):
            container.clear()
            (container.update if is_mapping else container.extend)(held)

    return restore


def _items(container: Any) -> list[int]:
    """Identities of what a container holds; equal ones would be compared, and tensors cannot be."""
    if not isinstance(container, dict):
        return [id(item) for item in container]
    return [id(item) for pair in container.items() for item in pair]


def _is_container(item: object) -> bool:
    kinds = (dict, list, collections.OrderedDict, collections.defaultdict, collections.deque)
    return type(item) in kinds and len(item) < _LONGEST  # type: ignore[arg-type]


def _leave_fast_path() -> Callable[[], None]:
    """Keep nn.TransformerEncoder from nested tensors, which have no fakes; puts that back.

    It takes them where it evaluates, as a script may between two steps.
    """
    mha: Any = torch.backends.mha
    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)

    def restore() -> None:
        mha.set_fastpath_enabled(before)

    return restore


def _remember_random() -> Callable[[], None]:
    states: list[tuple[Callable[[Any], object], Any]] = [
        (random.setstate, random.getstate()),
        (torch.set_rng_state, torch.get_rng_state()),
    ]
    cuda: Any = torch.cuda
    if cuda.is_initialized():
        states.append((cuda.set_rng_state_all, cuda.get_rng_state_all()))
    if (numpy := sys.modules.get("numpy")) is not None:
        states.append((numpy.random.set_state, numpy.random.get_state()))

    def restore() -> None:
        for put_back, state in states:
            put_back(state)

    return restore
