"""What a fused operation does, as text: which operations on elements, in which order.

In go steps that refer to tensors by their places, out comes one line of JSON, and back.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from legroom.capture._signature import operation_named


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a program.

    Attributes:
        operation: An operation on elements, one of `FUSIBLE`.
        args: Its arguments; in place of a tensor, `Place`. There are none among `kwargs`.
        dtype: Type of what it returns.
    """

    operation: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dtype: torch.dtype

    def reads(self) -> Iterator[int]:
        """The places of what it reads."""
        for value in self.args:
            if isinstance(value, Place):
                yield value.number


@dataclass(frozen=True, slots=True)
class Place:
    """Which tensor an argument is: those given are numbered first, then each step's result."""

    number: int


def write_program(steps: Sequence[Step]) -> str:
    """A program as one line of JSON: it says what a fused operation does, and so names it."""

    def written(value: Any) -> Any:
        if isinstance(value, Place):
            return {"v": value.number}
        return {"c": str(value)} if isinstance(value, torch.dtype) else value

    return json.dumps(
        [
            [
                str(step.operation),
                [written(value) for value in step.args],
                {key: written(value) for key, value in step.kwargs.items()},
                str(step.dtype),
            ]
            for step in steps
        ],
        separators=(",", ":"),
    )


@functools.lru_cache(maxsize=4096)
def read_program(text: str) -> tuple[Step, ...]:
    """The steps that `write_program` wrote down."""

    def read(value: Any) -> Any:
        if isinstance(value, dict):
            return Place(value["v"]) if "v" in value else _dtype(value["c"])
        return value

    return tuple(
        Step(
            operation_named(name),
            tuple(read(value) for value in args),
            {key: read(value) for key, value in kwargs.items()},
            _dtype(dtype),
        )
        for name, args, kwargs, dtype in json.loads(text)
    )


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name.removeprefix("torch."))  # type: ignore[no-any-return]
