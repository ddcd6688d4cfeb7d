"""LSTM layers as operations of ours, so that a captured graph shows them as eager runs them.

In comes `rnn_operations(exactness)` around the capture of a step; out come graphs in which every
layer and direction of an `nn.LSTM` is one forward and one backward operation. See Note [LSTM].
"""

# Note [LSTM]
# 1. On CPU in float32, eager runs every layer and direction of an LSTM as one oneDNN operation,
#    `aten.mkldnn_rnn_layer`, and keeps its workspace for backward. TorchDynamo unrolls the time
#    steps instead: other kernels, other bits, and a graph that grows with the sequence.
#    `legroom::lstm_layer` calls eager's operation, so outputs and gradients have eager's bits.
# 2. Eager runs oneDNN's training kernel, with a workspace, wherever gradients are enabled, and its
#    inference kernel elsewhere; train and eval mode of the module decide about dropout only. A
#    compiled forward runs with gradients disabled, so the choice is an argument: `is_training`.
# 3. Backward needs what eager keeps: input, weights, biases, both initial states, the three outputs
#    and the workspace. Without biases eager also keeps two tensors of zeros, as large as the
#    weights, that nobody reads; we keep none.
# 4. The workspace's size is oneDNN's (`set_workspace_sizes` in src/cpu/rnn/rnn_utils.hpp; written
#    anew here as a formula). It is tried once per process against what oneDNN really allocates for
#    three tiny layers; if it ever differs, each shape is run once for real and remembered.
# 5. Of that workspace backward reads the gates and half of the cells, and, where time runs
#    backwards, the states; the rest it writes first. Which, is tried once per process as well, with
#    what is not a number in the place of the rest (`lstm_workspace_read`).
# 6. The original forward is called where eager does not use oneDNN or we do not know it to: packed
#    sequences, projections, other dtypes, autocast, other devices, empty inputs.
# 7. A GRU has no such operation. Unrolled by TorchDynamo it has eager's bits only if its width is a
#    multiple of two vector registers: eager computes its gates in place in slices of one tensor,
#    row by row, TorchDynamo in tensors of their own, and the last elements of a row are computed
#    by other instructions than the rest.

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from legroom.capture._real import real_tensors

_LSTM_MODE = 2
_PAGE_BYTES = 4096
_LINE_BYTES = 64
_FLOAT_BYTES = 4
_POINTERS_BYTES = 4664
_MERGED_BATCH = 128  # below it, forward computes the gates of all time steps at once
_PROBES = ((3, 2, 5, 7), (2, 3, 40, 17), (1, 2, 256, 64))

_forward_of_torch = nn.LSTM.forward
_gru_forward_of_torch: Any = nn.GRU.forward


@contextmanager
def rnn_operations(exactness: str) -> Iterator[None]:
    """Let TorchDynamo capture recurrent layers while the context is open.

    An LSTM becomes operations of ours; unrolled, it would take a third more time. At `"bitwise"` a
    GRU whose unrolled form would have other bits is left out of the graph; see Note [LSTM], rule
    7. Everything else is unrolled into time steps: about 60 nodes a step for a GRU, 26 for an RNN.
    What was compiled inside the context stays valid outside.

    Limits: a process-wide patch of `nn.LSTM.forward` and `nn.GRU.forward`; not for several threads
    at once. A module that was compiled before is not compiled anew.
    """
    import torch._dynamo

    with torch._dynamo.config.patch(allow_rnn=True), rnn_forwards(exactness):
        yield


@contextmanager
def rnn_forwards(exactness: str) -> Iterator[None]:
    """The part of `rnn_operations` that calls of what was compiled need too. Cheap to enter."""
    before = nn.LSTM.forward, nn.GRU.forward
    if torch._C._get_mkldnn_enabled():
        nn.LSTM.forward = _forward  # type: ignore[method-assign]
    if exactness == "bitwise":
        nn.GRU.forward = _gru_forward()  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.LSTM.forward, nn.GRU.forward = before  # type: ignore[method-assign]


def lstm_workspace_bytes(num_steps: int, batch: int, input_size: int, hidden_size: int) -> int:
    """Bytes that oneDNN keeps for the backward pass of one layer and direction, in float32.

    Exact on the machine at hand; see Note [LSTM], rule 4. Costs microseconds, and once per process
    some milliseconds.
    """
    if _is_formula_right():
        return _workspace_formula(num_steps, batch, input_size, hidden_size)
    return _measure_workspace_bytes(int(num_steps), int(batch), int(input_size), int(hidden_size))


def lstm_workspace_read(
    num_steps: int, batch: int, input_size: int, hidden_size: int, *, is_reverse: bool
) -> tuple[tuple[int, int], ...] | None:
    """Which bytes of a workspace backward reads, as first and count; None where that is not known.

    See Note [LSTM], rule 5. Costs microseconds, and once per process some milliseconds.
    """
    if not (_is_formula_right() and _are_parts_right()):
        return None
    return _parts_read(num_steps, batch, input_size, hidden_size, is_reverse=is_reverse)


def _parts_read(
    num_steps: int, batch: int, input_size: int, hidden_size: int, *, is_reverse: bool
) -> tuple[tuple[int, int], ...]:
    found, first = [], 0
    sizes = _workspace_parts(num_steps, batch, input_size, hidden_size)
    for name, num_bytes in sizes.items():
        if name == "cells":
            found.append((first + num_bytes // 2, num_bytes - num_bytes // 2))
        elif name == "gates" or (name == "states" and is_reverse):
            found.append((first, num_bytes))
        first += _round_up(num_bytes, _PAGE_BYTES)
    return tuple(found)


@functools.cache
def _are_parts_right() -> bool:
    """Whether gradients are the same with what is not a number in all that is not read."""

    def drawn(*shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")

    with real_tensors(), torch.no_grad():
        for probe, is_reverse in itertools.product(_PROBES, (False, True)):
            num_steps, batch, input_size, hidden_size = probe
            source = drawn(num_steps, batch, input_size)
            weights = [drawn(4 * hidden_size, width) for width in (input_size, hidden_size)]
            weights += [drawn(4 * hidden_size), drawn(4 * hidden_size)]
            state = drawn(batch, hidden_size)
            outputs = _run_layer(source, weights, state, state, is_reverse, True)
            poisoned = torch.full_like(outputs[3], 255)  # a float of ones is not a number
            for first, count in _parts_read(*probe, is_reverse=is_reverse):
                poisoned[first : first + count] = outputs[3][first : first + count]
            gradients = [
                _run_backward(
                    source,
                    weights,
                    state,
                    state,
                    [*outputs[:3], workspace],
                    [outputs[0], state, state],
                    is_reverse,
                )
                for workspace in (outputs[3].clone(), poisoned)
            ]
            if not all(map(torch.equal, *gradients)):
                return False
    return True


def _workspace_formula(num_steps: int, batch: int, input_size: int, hidden_size: int) -> int:
    sizes = _workspace_parts(num_steps, batch, input_size, hidden_size).values()
    return sum(_round_up(num_bytes, _PAGE_BYTES) for num_bytes in sizes)


def _workspace_parts(
    num_steps: int, batch: int, input_size: int, hidden_size: int
) -> dict[str, int]:
    """Bytes of each part, in the order in which they lie."""
    widest = _padded(max(input_size, hidden_size))
    rows, state_rows = num_steps * batch, 2 * (num_steps + 1) * batch
    counts = {
        "gates": rows * _padded(4 * hidden_size),
        "hidden": rows * _padded(hidden_size),
        "states": state_rows * widest,
        "cells": state_rows * hidden_size,
        "gradients of states": state_rows * widest,
        "gradients of inputs": state_rows * widest,
        "gradients of cells": state_rows * hidden_size,
    }
    return {name: count * _FLOAT_BYTES for name, count in counts.items()}


def _padded(width: int) -> int:
    line = _LINE_BYTES // _FLOAT_BYTES
    padded = _round_up(width, line)
    return padded + line if padded % 256 == 0 else padded


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@functools.cache
def _is_formula_right() -> bool:
    return all(_measure_workspace_bytes(*probe) == _workspace_formula(*probe) for probe in _PROBES)


@functools.cache
def _measure_workspace_bytes(num_steps: int, batch: int, input_size: int, hidden_size: int) -> int:
    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float32, device="cpu")

    with real_tensors():
        weights = [zeros(4 * hidden_size, input_size), zeros(4 * hidden_size, hidden_size)]
        states = zeros(batch, hidden_size), zeros(batch, hidden_size)
        outputs = _run_layer(zeros(num_steps, batch, input_size), weights, *states, False, True)
        return outputs[3].nbytes


def _run_layer(
    input: Tensor,
    weights: Sequence[Tensor],
    hx: Tensor,
    cx: Tensor,
    reverse: bool,
    is_training: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run one layer and direction: output, last hidden state, last cell state, workspace.

    Args:
        input: (time, batch, width), contiguous.
        weights: As in `nn.LSTM.all_weights`: of input, of hidden state, and perhaps two biases.
        reverse: Whether time runs backwards.
        is_training: See Note [LSTM], rule 2; without it the workspace is empty.
    """
    with torch.set_grad_enabled(is_training), torch._C._AutoDispatchBelowAutograd():
        output, hy, cy, workspace = torch.ops.aten.mkldnn_rnn_layer.default(
            input,
            *_four_weights(weights),
            hx,
            cx,
            reverse,
            [],
            _LSTM_MODE,
            hx.shape[-1],
            1,
            len(weights) == 4,
            False,
            False,
            is_training,
        )
    if workspace is None:
        workspace = input.new_empty(0, dtype=torch.uint8)
    return output, hy, cy, workspace


def _four_weights(weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Weights with something in the place of biases, which is not read if there are none."""
    return (*weights, *weights)[:4]


lstm_layer = torch.library.custom_op("legroom::lstm_layer", _run_layer, mutates_args=())


@lstm_layer.register_fake
def _(
    input: Tensor,
    weights: Sequence[Tensor],
    hx: Tensor,
    cx: Tensor,
    reverse: bool,
    is_training: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    num_steps, batch, input_size = input.shape
    hidden_size = hx.shape[-1]
    num_bytes = 0
    if is_training:
        num_bytes = lstm_workspace_bytes(num_steps, batch, input_size, hidden_size)
    return (
        input.new_empty((num_steps, batch, hidden_size)),
        hx.new_empty(hx.shape),
        cx.new_empty(cx.shape),
        input.new_empty(num_bytes, dtype=torch.uint8),
    )


def _run_backward(
    input: Tensor,
    weights: Sequence[Tensor],
    hx: Tensor,
    cx: Tensor,
    outputs: Sequence[Tensor],
    grad_outputs: Sequence[Tensor | None],
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of input, both weights, both biases (meaningless without) and both states.

    Args:
        outputs: All four of `lstm_layer`.
        grad_outputs: Gradients of the first three; None stands for zeros.
    """
    gradients: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
    gradients = torch.ops.aten.mkldnn_rnn_layer_backward.default(
        input,
        *_four_weights(weights),
        hx,
        cx,
        *outputs[:3],
        *grad_outputs,
        reverse,
        _LSTM_MODE,
        hx.shape[-1],
        1,
        len(weights) == 4,
        True,
        False,
        [],
        False,
        outputs[3],
    )
    return gradients


lstm_layer_backward = torch.library.custom_op(
    "legroom::lstm_layer_backward", _run_backward, mutates_args=()
)


@lstm_layer_backward.register_fake
def _(
    input: Tensor, weights: Sequence[Tensor], hx: Tensor, cx: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    weight_ih, weight_hh = weights[:2]
    return (
        input.new_empty(input.shape),
        weight_ih.new_empty(weight_ih.shape),
        weight_hh.new_empty(weight_hh.shape),
        weight_ih.new_empty(weight_ih.shape[0]),
        weight_ih.new_empty(weight_ih.shape[0]),
        hx.new_empty(hx.shape),
        cx.new_empty(cx.shape),
    )


def _set_up_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    input, weights, hx, cx, reverse, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.reverse = reverse
    ctx.save_for_backward(input, hx, cx, *output, *weights)


def _backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Any, ...]:
    input, hx, cx, *rest = ctx.saved_tensors
    outputs, weights = rest[:4], rest[4:]
    if all(each is None for each in grad_outputs[:3]):
        return None, [None] * len(weights), None, None, None, None
    gradients = lstm_layer_backward(
        input, weights, hx, cx, outputs, list(grad_outputs[:3]), ctx.reverse
    )
    of_weights = list(gradients[1 : 1 + len(weights)])
    return gradients[0], of_weights, gradients[5], gradients[6], None, None


lstm_layer.register_autograd(_backward, setup_context=_set_up_backward)


def _forward(
    self: nn.LSTM, input: Any, hx: tuple[Tensor, Tensor] | None = None
) -> tuple[Any, tuple[Tensor, Tensor]]:
    if not _uses_onednn(self, input, hx):
        return _forward_of_torch(self, input, hx)
    is_batched = input.dim() == 3
    batch_dim = 0 if self.batch_first else 1
    if not is_batched:
        input = input.unsqueeze(batch_dim)
    if hx is None:
        num_directions = 2 if self.bidirectional else 1
        shape = (self.num_layers * num_directions, input.shape[batch_dim], self.hidden_size)
        hx = (torch.zeros(shape, dtype=input.dtype), torch.zeros(shape, dtype=input.dtype))
    elif not is_batched:
        hx = (hx[0].unsqueeze(1), hx[1].unsqueeze(1))
    self.check_forward_args(input, hx, None)
    output, hy, cy = _run_layers(self, input, *hx)
    if not is_batched:
        return output.squeeze(batch_dim), (hy.squeeze(1), cy.squeeze(1))
    return output, (hy, cy)


def _run_layers(
    module: nn.LSTM, input: Tensor, hx: Tensor, cx: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What `mkldnn_rnn` in aten/src/ATen/native/mkldnn/RNN.cpp does, operation by operation."""
    x = (input.transpose(0, 1) if module.batch_first else input).contiguous()
    hx, cx = hx.contiguous(), cx.contiguous()
    num_directions = 2 if module.bidirectional else 1
    is_training = torch.is_grad_enabled()
    last: list[tuple[Tensor, Tensor]] = []
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(num_directions):
            index = len(last)
            weights = module.all_weights[index]
            output, hy, cy, _ = lstm_layer(
                x, weights, hx[index], cx[index], direction > 0, is_training
            )
            outputs.append(output)
            last.append((hy, cy))
        x = outputs[0] if num_directions == 1 else torch.cat(outputs, -1)
        if module.dropout and module.training and layer < module.num_layers - 1:
            x = torch.dropout(x, module.dropout, True)
    hy, cy = torch.stack([state[0] for state in last]), torch.stack([state[1] for state in last])
    return (x.transpose(0, 1) if module.batch_first else x), hy, cy


def _uses_onednn(module: nn.LSTM, input: Any, hx: Any) -> bool:
    """Whether eager would; see Note [LSTM], rule 6. What looks wrong is left to torch to refuse."""
    if not isinstance(input, Tensor) or module.proj_size or torch.is_autocast_enabled("cpu"):
        return False
    states = () if hx is None else tuple(hx)
    if any(state.dim() != input.dim() for state in states):
        return False
    tensors = (input, *states, *module.parameters())
    is_float = all(each.dtype == torch.float32 and each.device.type == "cpu" for each in tensors)
    return is_float and input.dim() in (2, 3) and input.numel() > 0


@functools.cache
def _gru_forward() -> Callable[..., Any]:
    """A forward that TorchDynamo does not look into where it would change bits."""
    untraced = torch.compiler.disable(_gru_forward_of_torch)  # type: ignore[no-untyped-call]
    is_wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    multiple = 32 if is_wide else 16

    def forward(self: nn.GRU, input: Any, hx: Tensor | None = None) -> Any:
        is_exact = self.hidden_size % multiple == 0
        return (_gru_forward_of_torch if is_exact else untraced)(self, input, hx)

    return forward
