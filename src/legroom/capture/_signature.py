"""What the time of an operation depends on, as text, and real arguments made from it again.

In goes a call of an operation, on fake tensors or real ones; out comes one line of JSON that is the
same for every call alike: the operation's name, its arguments, and in place of each tensor its
shape, strides and type. `arguments_of` reads such a line and makes tensors to call it with.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import torch

from legroom.capture._operations import FUNCTIONAL
from legroom.errors import UsageError

_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_SYMBOLIC: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (torch.SymInt, int),
    (torch.SymFloat, float),
    (torch.SymBool, bool),
)
_SEED = 0


def signature_of(func: object, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> str:
    """One line of JSON for a call: `[name, args, kwargs]`.

    Tensors are `{"t": [shape, strides, dtype]}`, PyTorch's constants `{"c": "torch.float32"}`;
    numbers, texts, lists and None are themselves. Whatever else there is (a generator) is None.
    """
    call = [str(func), _written(list(args)), _written(dict(sorted((kwargs or {}).items())))]
    return json.dumps(call, separators=(",", ":"))


def _written(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        is_dense = value.layout is torch.strided
        strides = [int(stride) for stride in value.stride()] if is_dense else None
        dtype = str(value.dtype).removeprefix("torch.")
        return {"t": [[int(size) for size in value.shape], strides, dtype]}
    if isinstance(value, _CONSTANTS):
        return {"c": str(value) if str(value).startswith("torch.") else f"device:{value}"}
    if isinstance(value, list | tuple):
        return [_written(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _written(item) for key, item in value.items()}
    for symbolic, plain in _SYMBOLIC:
        if isinstance(value, symbolic):
            return plain(value)
    return value if isinstance(value, bool | int | float | str) else None


def arguments_of(
    signature: str, device: torch.device | str = "cpu"
) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
    """The operation that a signature names, and arguments to call it with.

    Floating-point tensors are drawn from a normal distribution, with a generator of their own, so
    that the program's random numbers stay as they are. Truth values are all true. Whole numbers
    are zero, or, where an operation takes them as indices, drawn from what is in range.

    Raises:
        UsageError: The text is not a signature, or this process has no such operation.
    """
    try:
        name, args, kwargs = json.loads(signature)
        operation = operation_named(name)
    except (ValueError, TypeError, AttributeError):
        raise UsageError(
            f"{signature!r} is not the signature of an operation that this process knows; "
            "expected what `capture.signature_of` writes"
        ) from None
    maker = _Maker(torch.device(device))
    read_args = [maker.read(value) for value in args]
    read_kwargs = {key: maker.read(value) for key, value in kwargs.items()}
    fill = _FILLED.get(name.split(".")[1] if name.count(".") else name)
    if fill is not None:
        fill(maker, read_args, read_kwargs)
    return operation, read_args, read_kwargs


def tensors_of(signature: str) -> list[Any]:
    """Shape, strides and type of each tensor among the arguments, in order."""
    _, args, kwargs = json.loads(signature)
    found: list[Any] = []

    def note(entry: dict[str, Any]) -> None:
        found.append(entry["t"])

    _exchange([args, kwargs], note)
    return found


def without_sizes(signature: str) -> str:
    """The same call whatever the sizes of its tensors; `call_with` gives it others."""
    name, args, kwargs = json.loads(signature)

    def bare(entry: dict[str, Any]) -> dict[str, Any]:
        return {"t": [[], [], entry["t"][2]]}

    args, kwargs = _exchange([args, kwargs], bare)
    return json.dumps([name, args, kwargs], separators=(",", ":"))


def call_with(signature: str, operand: Callable[[int, torch.dtype], torch.Tensor]) -> Any:
    """Call the operation that a signature names with other tensors.

    Args:
        operand: The tensor of that number among the arguments, given its type.
    """
    name, args, kwargs = json.loads(signature)
    numbers = itertools.count()

    def made(entry: dict[str, Any]) -> torch.Tensor:
        return operand(next(numbers), getattr(torch, entry["t"][2]))

    args, kwargs = _exchange([args, kwargs], made)
    maker = _Maker(torch.device("cpu"))
    operation = operation_named(name)
    return FUNCTIONAL.get(operation, operation)(
        *[maker.read(value) for value in args],
        **{key: maker.read(value) for key, value in kwargs.items()},
    )


def _exchange(value: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """The same with every tensor's entry changed, in order."""
    if isinstance(value, list):
        return [_exchange(item, change) for item in value]
    if isinstance(value, dict):
        if "t" in value:
            return change(value)
        return {key: _exchange(item, change) for key, item in value.items()}
    return value


def operation_named(name: str) -> Callable[..., Any]:
    """The operation that PyTorch calls so: `"aten.mul.Tensor"`, or a higher-order one."""
    found: Any = torch.ops if "." in name else torch.ops.higher_order
    for part in name.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise AttributeError(name)
    return found  # type: ignore[no-any-return]


class _Maker:
    """Makes tensors of given shape on one device, always the same ones."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._generator = torch.Generator(device).manual_seed(_SEED)

    def read(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.read(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "t" in value:
            return self.tensor(*value["t"])
        if "c" in value:
            kind, _, name = value["c"].rpartition(".")
            return self.device if kind != "torch" else getattr(torch, name)
        return {key: self.read(item) for key, item in value.items()}

    def tensor(self, shape: list[int], strides: list[int] | None, dtype_name: str) -> torch.Tensor:
        dtype = getattr(torch, dtype_name)
        if strides is None:
            return self._flat(math.prod(shape), dtype).reshape(shape)
        span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        return self._flat(0 if 0 in shape else span, dtype).as_strided(shape, strides)

    def _flat(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        if dtype is torch.bool:
            return torch.ones(count, dtype=dtype, device=self.device)
        if (dtype.is_floating_point and dtype.itemsize > 1) or dtype.is_complex:
            return torch.randn(count, dtype=dtype, device=self.device, generator=self._generator)
        return torch.zeros(count, dtype=dtype, device=self.device)

    def draw(self, index: Any, end: int) -> None:
        """Fill a tensor of whole numbers with some from 0 up to, not including, `end`."""
        if not _holds_numbers(index) or end <= 0:
            return
        drawn = torch.randint(
            end, index.shape, dtype=index.dtype, device=self.device, generator=self._generator
        )
        _flat_view(index).copy_(_like(drawn, index))


def _holds_numbers(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dtype is not torch.bool
        and not value.dtype.is_floating_point
        and value.numel() > 0
    )


def _flat_view(index: torch.Tensor) -> torch.Tensor:
    """The tensor with each element of its storage once, so that expanded ones can be written."""
    shape = [1 if stride == 0 else size for size, stride in _extents(index)]
    return index.as_strided(shape, index.stride())


def _like(drawn: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    for dim, (_, stride) in enumerate(_extents(index)):
        if stride == 0:
            drawn = drawn.narrow(dim, 0, 1)
    return drawn


def _extents(tensor: torch.Tensor) -> list[tuple[int, int]]:
    return list(zip(tensor.shape, tensor.stride(), strict=True))


_Fill = Callable[[_Maker, list[Any], dict[str, Any]], None]


def _rows(maker: _Maker, args: list[Any], kwargs: dict[str, Any]) -> None:
    """`embedding(weight, indices)`."""
    maker.draw(args[1], args[0].shape[0])


def _rows_backward(maker: _Maker, args: list[Any], kwargs: dict[str, Any]) -> None:
    """`embedding_dense_backward(grad, indices, num_weights, …)`."""
    maker.draw(args[1], args[2])


def _along(maker: _Maker, args: list[Any], kwargs: dict[str, Any]) -> None:
    """`gather(self, dim, index)` and its like."""
    shape = args[0].shape
    maker.draw(args[2], shape[args[1]] if len(shape) else 1)


def _along_backward(maker: _Maker, args: list[Any], kwargs: dict[str, Any]) -> None:
    """`index_select_backward(grad, self_sizes, dim, index)`."""
    maker.draw(args[3], args[1][args[2]])


def _per_dimension(maker: _Maker, args: list[Any], kwargs: dict[str, Any]) -> None:
    """`index(self, [indices])`, `index_put(self, [indices], …)`."""
    sizes = list(args[0].shape)
    for index in args[1]:
        if not sizes:
            break
        if isinstance(index, torch.Tensor) and index.dtype is torch.bool:
            del sizes[: index.dim()]
            continue
        maker.draw(index, sizes.pop(0))


def _classes(maker: _Maker, args: list[Any], kwargs: dict[str, Any]) -> None:
    """`nll_loss_forward(self, target, …)`, `nll_loss_backward(grad, self, target, …)`."""
    position = next(place for place, value in enumerate(args) if _holds_numbers(value))
    scores = args[position - 1]
    maker.draw(args[position], scores.shape[1 if scores.dim() > 1 else 0])
    if len(args) > position + 4 and isinstance(args[position + 4], torch.Tensor):
        args[position + 4].fill_(args[position].numel())  # total_weight


def _picked(maker: _Maker, args: list[Any], kwargs: dict[str, Any]) -> None:
    """`max_pool2d_with_indices_backward(grad, self, …, indices)`."""
    maker.draw(args[-1], math.prod(args[1].shape[-2:]))


def _bags(maker: _Maker, args: list[Any], kwargs: dict[str, Any]) -> None:
    """`_embedding_bag(weight, indices, offsets, …)`."""
    maker.draw(args[1], args[0].shape[0])
    if _holds_numbers(args[2]):
        args[2].copy_(torch.linspace(0, args[1].numel(), args[2].numel() + 1)[:-1].long())


def _bags_backward(maker: _Maker, args: list[Any], kwargs: dict[str, Any]) -> None:
    """`_embedding_bag_…backward(grad, indices, offsets | offset2bag, …, num_weights, …)`."""
    num_bags = args[0].shape[0]
    for place, value in enumerate(args[1:], start=1):
        if not _holds_numbers(value):
            continue
        if place == 1:
            sizes = [item for item in args if isinstance(item, int) and not isinstance(item, bool)]
            maker.draw(value, sizes[0])
        elif value.numel() == args[1].numel() and value.numel() != num_bags:
            value.copy_(torch.linspace(0, num_bags - 1, value.numel()).long())
        elif place == 2:
            value.copy_(torch.linspace(0, args[1].numel(), value.numel() + 1)[:-1].long())
        else:
            value.fill_(max(1, args[1].numel() // num_bags))


def _alignments(maker: _Maker, args: list[Any], kwargs: dict[str, Any]) -> None:
    """`_ctc_loss(log_probs, targets, …)`, `_ctc_loss_backward(grad, log_probs, targets, …)`."""
    place = next(place for place, value in enumerate(args) if _holds_numbers(value))
    scores, targets = args[place - 1], args[place]
    maker.draw(targets, scores.shape[-1] - 1)
    targets.add_(1)  # 0 is usually the blank
    longest = targets.shape[-1] if targets.dim() > 1 else targets.numel() // scores.shape[1]
    for lengths, most in ((args[place + 1], scores.shape[0]), (args[place + 2], longest)):
        if isinstance(lengths, torch.Tensor):
            lengths.fill_(most)


def _groups(maker: _Maker, args: list[Any], kwargs: dict[str, Any]) -> None:
    """`_grouped_mm(self, mat2, offs)`: groups of equal size."""
    ends: Any = kwargs.get("offs", args[2] if len(args) > 2 else None)
    if _holds_numbers(ends):
        length = args[0].shape[-1] if args[1].dim() == 2 else args[0].shape[-2]
        ends.copy_(torch.linspace(0, length, ends.numel() + 1)[1:].to(ends.dtype))


_FILLED: dict[str, _Fill] = {
    "embedding": _rows,
    "embedding_dense_backward": _rows_backward,
    "gather": _along,
    "index_select": _along,
    "index_select_backward": _along_backward,
    "index_add": _along,
    "index_add_": _along,
    "index_copy": _along,
    "index_fill": _along,
    "scatter": _along,
    "scatter_": _along,
    "scatter_add": _along,
    "scatter_add_": _along,
    "scatter_reduce": _along,
    "index": _per_dimension,
    "_unsafe_index": _per_dimension,
    "index_put": _per_dimension,
    "index_put_": _per_dimension,
    "_index_put_impl_": _per_dimension,
    "_unsafe_index_put": _per_dimension,
    "nll_loss_forward": _classes,
    "nll_loss_backward": _classes,
    "nll_loss2d_forward": _classes,
    "nll_loss2d_backward": _classes,
    "max_pool2d_with_indices_backward": _picked,
    "_embedding_bag": _bags,
    "_embedding_bag_forward_only": _bags,
    "_embedding_bag_backward": _bags_backward,
    "_embedding_bag_dense_backward": _bags_backward,
    "_ctc_loss": _alignments,
    "_ctc_loss_backward": _alignments,
    "_grouped_mm": _groups,
}
"""Operations whose whole numbers are indices, without overloads: how each is filled."""
