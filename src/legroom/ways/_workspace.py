"""Hold of an LSTM's workspace what its backward pass reads; the rest is room to work in.

oneDNN makes the memory that backward works in together with what forward leaves for it, so PyTorch
keeps both from forward on: two thirds and more of the workspace are written before they are read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, final

import torch

from legroom.capture import OperationInfo, TensorInfo, lstm_workspace_read
from legroom.ways._encoding import AbstractEncoding, define
from legroom.ways._way import Exactness

_PLACE = 3
"""Of the workspace, among what a layer writes."""


def _put(value: torch.Tensor, firsts: Sequence[int], counts: Sequence[int]) -> torch.Tensor:
    parts = [value[first : first + count] for first, count in zip(firsts, counts, strict=True)]
    return torch.cat(parts)


def _get(
    held: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    firsts: Sequence[int],
    counts: Sequence[int],
) -> torch.Tensor:
    value = torch.empty_strided(size, stride, dtype=dtype, device=held.device)
    behind = 0
    for first, count in zip(firsts, counts, strict=True):
        value[first : first + count] = held[behind : behind + count]
        behind += count
    return value


@final
class Workspace(AbstractEncoding):
    """The parts of an LSTM layer's workspace that are read before they are written."""

    name = "workspace"
    summary = "hold of an LSTM's workspace what backward reads, a third or less"
    exactness = Exactness.BITWISE
    origin = "legroom (what oneDNN keeps is mostly room for backward to work in)"
    costs = "a copy of what is held, in forward and in backward"
    when = "For LSTMs on a CPU, of which oneDNN keeps a workspace for each layer and direction."
    not_with = (
        "GRUs and plain RNNs, and a oneDNN whose workspace is laid out in another way: that "
        "is tried once in each process, and then the workspace is held whole."
    )
    readers_only = True
    is_flat = False
    put, get = define(
        "workspace",
        _put,
        _get,
        about=", int[] firsts, int[] counts",
        num_held=lambda value, firsts, counts: sum(counts),
    )

    @classmethod
    def held_bytes(cls, tensor: TensorInfo, about: tuple[Any, ...]) -> int | None:
        """What is read of it."""
        return int(sum(about[1]))

    @classmethod
    def about(
        cls, tensor: TensorInfo, producer: OperationInfo, readers: tuple[OperationInfo, ...]
    ) -> tuple[Any, ...] | None:
        """Where the parts begin, and how long they are, in bytes."""
        is_layer = producer.name == "legroom.lstm_layer.default" and bool(producer.signature)
        if not is_layer or producer.writes[_PLACE : _PLACE + 1] != (tensor.index,):
            return None
        _, args, _ = json.loads(producer.signature)
        (num_steps, batch, input_size), hidden_size = args[0]["t"][0], args[2]["t"][0][-1]
        parts = lstm_workspace_read(
            num_steps, batch, input_size, hidden_size, is_reverse=bool(args[4])
        )
        if parts is None or tensor.shape != (tensor.num_bytes,):
            return None
        return tuple(first for first, _ in parts), tuple(count for _, count in parts)
