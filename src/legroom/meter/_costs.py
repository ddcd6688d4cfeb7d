"""What an operation does, from its signature alone: arithmetic, bytes moved, bytes held.

In goes a signature (`capture.signature_of`); out comes an `OperationCost`. The operation is run on
fake tensors, which have shapes but no memory, so a cost needs neither the device nor its memory.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch

from legroom.capture import arguments_of, fake_rules, real_tensors
from legroom.errors import TorchInterfaceError

_MATRIX_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear"})
_LOOKUPS = frozenset({"embedding", "gather", "index", "index_select"})
_MOVE_NOTHING = frozenset({"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty"})
# Operations that PyTorch has no formula for, and those whose formula is theirs too.
_COUNTED_LIKE = {
    "_scaled_dot_product_flash_attention_for_cpu": "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward": (
        "_scaled_dot_product_flash_attention_backward"
    ),
}
_RECURRENT = {  # how often each weight is used per position: twice as often backward as forward
    "mkldnn_rnn_layer": 1,
    "mkldnn_rnn_layer_backward": 2,
    "_cudnn_rnn": 1,
    "_cudnn_rnn_backward": 2,
}


@final
@dataclass(frozen=True, slots=True)
class OperationTime:
    """What one run of an operation takes.

    Attributes:
        ms: Milliseconds of one run.
        is_measured: Whether it was run on the device, rather than worked out from its cost.
        workspace_bytes: Scratch memory while it runs, beyond what it returns; 0 where not measured.
    """

    ms: float
    is_measured: bool
    workspace_bytes: int = 0


@final
@dataclass(frozen=True, slots=True)
class OperationCost:
    """What one run of an operation does.

    Attributes:
        name: The operation without its overload: `"addmm"`.
        flops: Of products, convolutions, attention and recurrent layers; 0 for the rest.
        moved_bytes: Read and written at the least: every input and every output once.
        held_bytes: Its inputs and outputs together.
        largest_output_bytes: The largest block it asks for to write to.
        not_returned: Places among its outputs where a step gets nothing: gradients that nobody
            wants, which some kernels compute all the same.
        dtype: Of its first floating-point tensor; `"float32"` where there is none.
        is_elementwise: Whether PyTorch calls it pointwise.
    """

    name: str
    flops: int = 0
    moved_bytes: int = 0
    held_bytes: int = 0
    largest_output_bytes: int = 0
    not_returned: tuple[int, ...] = ()
    dtype: str = "float32"
    is_elementwise: bool = False

    @property
    def is_matrix_product(self) -> bool:
        """Whether it is one matrix product and nothing else."""
        return self.name in _MATRIX_PRODUCTS


@functools.lru_cache(maxsize=8192)
def cost_of(signature: str) -> OperationCost:
    """The cost of one run. About 3 ms of Python each time a signature is new.

    Limits: where the output depends on values (`nonzero`) or the operation has no fake
    implementation, only its inputs are counted; an operation that is unknown here costs nothing.
    """
    name = name_of(signature)
    with _fake_tensors():
        try:
            operation, args, kwargs = arguments_of(signature)
        except Exception:  # unknown here, or arguments of another form than the usual
            return OperationCost(name)
        try:
            output = operation(*args, **kwargs)
        except Exception:  # whatever a fake implementation raises: the inputs are still known
            output = None
        return _cost(name, operation, args, kwargs, output)


def name_of(signature: str) -> str:
    """The operation's name without namespace and overload: `"addmm"`; the text if it is none."""
    try:
        full_name = str(json.loads(signature)[0])
    except (ValueError, IndexError, KeyError, TypeError):
        return signature
    parts = full_name.split(".")
    return parts[1] if len(parts) > 1 else full_name


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested lists, tuples and dictionaries, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


@contextlib.contextmanager
def _fake_tensors() -> Iterator[None]:
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError:
        raise TorchInterfaceError("torch._subclasses.FakeTensorMode", tested="2.13.0") from None
    with real_tensors(), fake_rules(), _unlogged(), FakeTensorMode(), torch.no_grad():
        yield


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Keep off the terminal that an operation has no fake implementation: we look for that."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _cost(
    name: str, operation: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], output: Any
) -> OperationCost:
    inputs, outputs = list(tensors_in([args, kwargs])), list(tensors_in(output))
    read_bytes = [_num_bytes(tensor) for tensor in inputs]
    written = [_num_bytes(tensor) for tensor in outputs]
    written_bytes = sum(written)
    held_bytes = sum(read_bytes) + written_bytes
    if name in _LOOKUPS and outputs:
        read_bytes[0] = min(read_bytes[0], written_bytes)
    is_view = isinstance(operation, torch._ops.OpOverload) and operation.is_view
    moves_nothing = is_view or name in _MOVE_NOTHING
    floats = (t.dtype for t in (*inputs, *outputs) if t.dtype.is_floating_point)
    return OperationCost(
        name=name,
        flops=_flops(name, operation, args, kwargs, output),
        moved_bytes=0 if moves_nothing else sum(read_bytes) + written_bytes,
        held_bytes=held_bytes,
        largest_output_bytes=max(written, default=0),
        not_returned=tuple(
            place
            for place, value in enumerate(output if isinstance(output, list | tuple) else ())
            if value is None
        ),
        dtype=str(next(floats, torch.float32)).removeprefix("torch."),
        is_elementwise=torch.Tag.pointwise in getattr(operation, "tags", ()),
    )


def _num_bytes(tensor: torch.Tensor) -> int:
    """Bytes of its elements; those that an expanded tensor repeats count once."""
    if tensor.layout is not torch.strided:
        return tensor.numel() * tensor.itemsize
    sizes = (n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not n)
    return math.prod(sizes) * tensor.itemsize


def _flops(
    name: str, operation: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], output: Any
) -> int:
    formula = _formula_for(name, operation)
    try:
        if name in _RECURRENT:
            weights = [tensor for tensor in tensors_in(args[1:5]) if tensor.dim() == 2]
            positions = int(math.prod(args[0].shape[:2]))
            return 2 * _RECURRENT[name] * positions * sum(weight.numel() for weight in weights)
        if name == "linear":
            return 2 * int(args[0].numel()) * int(args[1].shape[0])
        return 0 if formula is None else int(formula(*args, **kwargs, out_val=output))
    except (AssertionError, AttributeError, IndexError, TypeError, ValueError):
        return 0  # a form that the formula's authors did not think of


def _formula_for(name: str, operation: Callable[..., Any]) -> Callable[..., Any] | None:
    try:
        from torch.utils.flop_counter import flop_registry
    except ImportError:
        raise TorchInterfaceError(
            "torch.utils.flop_counter.flop_registry", tested="2.13.0"
        ) from None
    if name in _COUNTED_LIKE:
        return flop_registry.get(getattr(torch.ops.aten, _COUNTED_LIKE[name]))
    if isinstance(operation, torch._ops.OpOverload):
        return flop_registry.get(operation.overloadpacket)
    return flop_registry.get(operation)
