"""Shapes and sizes of operations that torch's fake tensors get wrong, or refuse, on CPU.

In come the arguments of an operation under `FakeTensorMode`; out come fake results as large as the
real ones, or, where that depends on values nobody knows yet, as large as they can get.
"""

# Note [Fake rules]
# 1. A rule takes the operation's arguments, fake or real, and returns what the operation would. It
#    is called with a `FakeTensorMode` active, by whoever intercepts operations above that mode.
# 2. A rule named in `ASSUMED` guesses when the values that it needs are fake: it takes the largest
#    result that the shapes allow. If the values are real, as those of a batch are, it is exact.
# 3. Sizes are seldom wrong, but layouts are, and they decide whether a later `reshape` copies or is
#    traced as a view, which fails on the real tensor. The rules mend what was found by comparing
#    operations on transposed inputs, but for roll and the forward of element-wise losses: there
#    executors copy where a view cannot be had.
# 5. TorchDynamo and AOTAutograd dispatch to fake kernels themselves; for them `fake_rules()` puts
#    the exact rules into torch's table. The guesses stay out of it: there torch breaks the graph,
#    which is right, where a guess would compile a wrong shape.
# 6. Inductor copies torch's table of decompositions when it is first imported. If that happened
#    while ours is changed, its copy would lack some for the rest of the process.

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from legroom.capture._losses import LARGE_LOSSES
from legroom.capture._real import real_tensors
from legroom.capture._rnn import lstm_workspace_bytes

aten = torch.ops.aten


@contextlib.contextmanager
def fake_rules() -> Iterator[None]:
    """Give the exact rules to every fake tensor mode, those of TorchDynamo and AOTAutograd too.

    Limits: changes a table of torch's for the whole process while the context is open.
    """
    with contextlib.suppress(ImportError):  # see Note [Fake rules], rule 6
        importlib.import_module("torch._inductor.decomposition")
    table = fake_impls.op_implementations_dict
    added = {op: _as_implementation(rule) for op, rule in FAKE_RULES.items() if op not in ASSUMED}
    before = {op: table[op] for op in added if op in table}
    # Where there is a decomposition, fake tensors take their layout from it and ask no table.
    decomposed: dict[Any, Callable[..., Any]] = {
        op: decomposition_table[op] for op in added if op in decomposition_table
    }
    FakeTensorMode.cache_clear()
    table.update(added)
    for op in decomposed:
        del decomposition_table[op]
    try:
        yield
    finally:
        for op in added:
            del table[op]
        table.update(before)
        decomposition_table.update(decomposed)
        FakeTensorMode.cache_clear()


def _as_implementation(rule: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(rule)
    def implementation(fake_mode: FakeTensorMode, _: OpOverload, *args: Any, **kwargs: Any) -> Any:
        with fake_mode:
            return rule(*args, **kwargs)

    return implementation


def _known(tensor: Tensor) -> Tensor | None:
    """The tensor's values, if there are any; see Note [Fake rules], rule 2."""
    return tensor.constant if isinstance(tensor, FakeTensor) else tensor


def _most(tensor: Tensor, value_of: Callable[[Tensor], Tensor], *, otherwise: int) -> int:
    known = _known(tensor)
    if known is None:
        return otherwise
    with real_tensors():
        return int(value_of(known).item())


def _lstm_layer(input: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """torch's fake kernel has an empty workspace."""
    hx, cx = args[4:6]
    num_steps, batch, input_size = input.shape
    hidden_size = hx.shape[-1]
    workspace = None
    if torch.is_grad_enabled():
        num_bytes = lstm_workspace_bytes(num_steps, batch, input_size, hidden_size)
        workspace = input.new_empty(num_bytes, dtype=torch.uint8)
    output = input.new_empty((num_steps, batch, hidden_size))
    return output, hx.new_empty(hx.shape), cx.new_empty(cx.shape), workspace


def _lstm_layer_backward(
    input: Tensor, weight_ih: Tensor, weight_hh: Tensor, *args: Any
) -> tuple[Tensor, ...]:
    """torch's fake kernel returns one tensor for both biases; the real one returns two."""
    hx, cx = args[2:4]
    shapes = [each.shape for each in (input, weight_ih, weight_hh)]
    shapes += [weight_ih.shape[:1], weight_ih.shape[:1], hx.shape, cx.shape]
    return tuple(input.new_empty(shape, dtype=torch.float32) for shape in shapes)


def _grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """torch's fake kernel asks for bfloat16, which only CUDA does. Rows are aligned to 16 bytes."""
    dtype = out_dtype or mat_a.dtype
    rows, columns = mat_a.shape[-2], mat_b.shape[-1]
    alignment = 16 // dtype.itemsize
    padded = -(-columns // alignment) * alignment
    shape, strides = [rows, columns], [padded, 1]
    if mat_a.dim() == mat_b.dim():
        shape.insert(0, mat_a.shape[0] if offs is None else offs.shape[0])
        strides.insert(0, rows * padded)
    return mat_a.new_empty_strided(shape, strides, dtype=dtype)


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    *_: Any,
) -> tuple[Tensor, Tensor]:
    """Losses, and the forward variables of every time and every place in the longest target."""
    if isinstance(target_lengths, Tensor):
        mean = -(-targets.numel() // max(target_lengths.numel(), 1))  # if they are padded: the most
        longest = _most(target_lengths, torch.max, otherwise=mean)
    else:
        longest = max(target_lengths, default=0)
    if log_probs.dim() == 2:
        return log_probs.new_empty(()), log_probs.new_empty((len(log_probs), 2 * longest + 1))
    num_steps, batch, _labels = log_probs.shape
    alphas = log_probs.new_empty((batch, num_steps, 2 * longest + 1))
    return log_probs.new_empty((batch,)), alphas


def _layer_norm_backward(
    grad: Tensor, input: Tensor, shape: Sequence[int], *args: Any
) -> tuple[Tensor | None, ...]:
    """torch's fake kernel lays the result out as the gradient is; the real one is contiguous."""
    *_rest, weight, bias, mask = args
    likes = (input, weight, bias)
    return tuple(
        like.new_empty(like.shape) if is_asked else None
        for like, is_asked in zip(likes, mask, strict=True)
    )


def _batch_norm_backward(
    grad: Tensor, input: Tensor, weight: Tensor | None, *args: Any
) -> tuple[Tensor | None, ...]:
    """torch's fake kernel makes a gradient of the input even where nobody asks for one."""
    (*_rest, mask), num_channels = args, input.shape[1]
    like = input if weight is None else weight
    return (
        _as_batch_norm_lays_out(input) if mask[0] else None,
        like.new_empty(num_channels) if mask[1] else None,
        like.new_empty(num_channels) if mask[2] else None,
    )


def _batch_norm(spelled_out: Callable[..., Any], input: Tensor, *args: Any) -> tuple[Any, ...]:
    """torch's fake kernel lays the result out as the input is, whatever that is."""
    output, *rest = spelled_out(input, *args)
    return (_as_batch_norm_lays_out(output, like=input), *rest)


def _as_batch_norm_lays_out(output: Tensor, like: Tensor | None = None) -> Tensor:
    """Contiguous, or with channels last where the input is so."""
    like = output if like is None else like
    if like.device.type != "cpu":
        return torch.empty_like(output)
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    usual = torch.contiguous_format
    other = formats.get(like.dim(), usual)
    is_other = not like.is_contiguous() and like.is_contiguous(memory_format=other)
    return torch.empty_like(output, memory_format=other if is_other else usual)


def _gradient_in_order(grad: Tensor, input: Tensor) -> Tensor:
    """As an operation on both: where they differ, as the gradient is."""
    return torch.add(grad, input)


def _gradient_of_elu(
    grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, input: Tensor
) -> Tensor:
    return _gradient_in_order(grad, input)


def _contiguous_gradient(grad: Tensor, input: Tensor, *_: Any, **__: Any) -> Tensor:
    """The kernel writes into zeros, or into memory of its own."""
    return input.new_empty(input.shape)


def _log_sigmoid(input: Tensor) -> tuple[Tensor, Tensor]:
    """Contiguous; on a CPU it leaves as much again for backward."""
    buffer = input.shape if input.device.type == "cpu" else (0,)
    return input.new_empty(input.shape), input.new_empty(buffer)


def _log_softmax_backward(
    grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Tensor:
    """As for the layer norm."""
    return grad.new_empty(grad.shape, dtype=input_dtype)


def _dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    """torch's fake kernel is contiguous; the real one is laid out as the gradient is."""
    return grad * (mask.type_as(grad) * scale)


def _nonzero(tensor: Tensor) -> Tensor:
    count = _most(tensor, torch.count_nonzero, otherwise=tensor.numel())
    return tensor.new_empty((tensor.dim(), count), dtype=torch.int64).t()


def _masked_select(tensor: Tensor, mask: Tensor) -> Tensor:
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)  # type: ignore[no-untyped-call]
    num_repeats = shape.numel() // max(mask.numel(), 1)
    count = _most(mask, torch.count_nonzero, otherwise=mask.numel())
    return tensor.new_empty((count * num_repeats,))


def _index(tensor: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    return aten.index.Tensor(tensor, _without_masks(indices))  # type: ignore[no-any-return]


def _without_masks(indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Indices in which a mask is replaced by the positions that it selects."""
    masks = [each for each in indices if each is not None and each.dtype in _MASK_DTYPES]
    counts = [_most(mask, torch.count_nonzero, otherwise=mask.numel()) for mask in masks]
    expanded: list[Tensor | None] = []
    for each in indices:
        if each is None or each.dtype not in _MASK_DTYPES:
            expanded.append(each)
        else:
            positions = each.new_empty((min(counts),), dtype=torch.int64)
            expanded.extend([positions] * each.dim())
    return expanded


def _unique(tensor: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
    inverse = tensor.new_empty(tensor.shape, dtype=torch.int64)
    counts = tensor.new_empty((tensor.numel(),), dtype=torch.int64)
    return tensor.new_empty((tensor.numel(),)), inverse, counts


def _bincount(tensor: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    largest = _most(tensor, torch.max, otherwise=minlength - 1)
    if largest < 0:
        return aten.bincount.default(tensor, weights, minlength)  # type: ignore[no-any-return]
    dtype = torch.int64 if weights is None else weights.dtype
    return tensor.new_empty((max(largest + 1, minlength),), dtype=dtype)


def _pack_padded_sequence(
    input: Tensor, lengths: Tensor, batch_first: bool
) -> tuple[Tensor, Tensor]:
    """How many sequences there are at each step stays known: kernels look at it."""
    batch, longest = (0, 1) if batch_first else (1, 0)
    known = _known(lengths)
    with real_tensors():
        if known is None:
            known = torch.full((input.shape[batch],), input.shape[longest])
        steps = torch.arange(int(known.max().item()))
        num_running = (known.unsqueeze(0) > steps.unsqueeze(1)).sum(1)
        count = int(known.sum().item())
    return input.new_empty((count, *input.shape[2:])), num_running


_MASK_DTYPES = (torch.bool, torch.uint8)
_BATCH_NORMS = (
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
)
_IN_ORDER = (
    aten.hardsigmoid_backward.default,
    aten.hardswish_backward.default,
    aten.hardtanh_backward.default,
    aten.softplus_backward.default,
)
_CONTIGUOUS = (
    aten.glu_backward.default,
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.huber_loss_backward.default,
)

FAKE_RULES: dict[OpOverload, Callable[..., Any]] = {
    aten.mkldnn_rnn_layer.default: _lstm_layer,
    aten.mkldnn_rnn_layer_backward.default: _lstm_layer_backward,
    aten._grouped_mm.default: _grouped_mm,
    aten.native_dropout_backward.default: _dropout_backward,
    **{op: functools.partial(_batch_norm, decomposition_table[op]) for op in _BATCH_NORMS},
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.elu_backward.default: _gradient_of_elu,
    **dict.fromkeys(_IN_ORDER, lambda grad, input, *_: _gradient_in_order(grad, input)),
    **dict.fromkeys(_CONTIGUOUS, _contiguous_gradient),
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten._log_softmax_backward_data.default: _log_softmax_backward,
    aten._ctc_loss.default: _ctc_loss,
    aten._ctc_loss.Tensor: _ctc_loss,
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten.index.Tensor: _index,
    aten._unique2.default: _unique,
    aten.bincount.default: _bincount,
    aten._pack_padded_sequence.default: _pack_padded_sequence,
    **LARGE_LOSSES,
}

ASSUMED: dict[OpOverload, str] = {
    aten._ctc_loss.Tensor: "targets are taken to be equally long, as padded ones at most are",
    aten.nonzero.default: "every element is taken to be nonzero",
    aten.masked_select.default: "every element is taken to be selected",
    aten.index.Tensor: "every element is taken to be selected by a mask",
    aten._unique2.default: "all elements are taken to be different",
    aten.bincount.default: "values are taken to be below `minlength`",
    aten._pack_padded_sequence.default: "sequences are taken to be as long as the padded ones",
}
