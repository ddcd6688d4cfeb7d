"""What every workload hands back, and the command line that runs one as a training script.

In goes a case's `build` function; out come a `Case`, or one printed line per training step.
"""

import argparse
import ast
import difflib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

import torch
from torch import nn

BatchT = TypeVar("BatchT")
SizeT = TypeVar("SizeT")


class UnknownCaseError(ValueError):
    """There is no case of that name."""


class UnknownSizeError(ValueError):
    """The case has no size of that name."""


class SizeFieldError(ValueError):
    """A size has no such field, or the field cannot have that value."""


class Batches(Generic[BatchT]):
    """The batches of a case, over and over; an iterator that can begin anew."""

    def __init__(self, batches: Sequence[BatchT]) -> None:
        self._batches = batches
        self._place = 0

    def __iter__(self) -> "Batches[BatchT]":
        return self

    def __next__(self) -> BatchT:
        batch = self._batches[self._place]
        self._place = (self._place + 1) % len(self._batches)
        return batch

    def rewind(self) -> None:
        """Let the first be the next."""
        self._place = 0


@dataclass(frozen=True)
class Case:
    """A model with its training step, on generated data.

    Attributes:
        name: Name of the case in `benchmarks.cases.names()`.
        size: Key in the `SIZES` of the case; single fields of it may have been changed.
        model: The main model; for a GAN the critic.
        optimizer: The optimizer of `model`.
        step: Does one whole training step and returns the detached loss.
        loss: Forward and loss on one fixed batch, with its graph; backward is left to the caller.
        models: All models, `model` included; copies such as a moving average count.
        optimizers: All optimizers, `optimizer` included.
        rewind: Makes the first batch the next, after steps that were called to plan or to try.
        blocks: Names, in `model`, of the modules that a person would wrap in
            `torch.utils.checkpoint`; empty where there are none.
    """

    name: str
    size: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[[], torch.Tensor]
    loss: Callable[[], torch.Tensor]
    models: tuple[nn.Module, ...]
    optimizers: tuple[torch.optim.Optimizer, ...]
    rewind: Callable[[], None]
    blocks: tuple[str, ...] = ()


def pick_size(
    sizes: Mapping[str, SizeT], size: str, *, case: str, changes: Mapping[str, Any] | None = None
) -> SizeT:
    """The entry of `sizes` that is called `size`, with some of its fields changed.

    Raises:
        UnknownSizeError: There is none.
        SizeFieldError: A change names no field of it, or has a value of another type.
    """
    if size not in sizes:
        raise UnknownSizeError(
            f"unknown size {size!r} of case {case!r}; available: {', '.join(sizes)}"
            f"{_hint(size, sizes)}"
        )
    picked: Any = sizes[size]
    names = [field.name for field in fields(picked)]
    for name, value in (changes or {}).items():
        if name not in names:
            raise SizeFieldError(
                f"a size of case {case!r} has no field {name!r}; available: {', '.join(names)}"
                f"{_hint(name, names)}"
            )
        wanted = type(getattr(picked, name))
        if not isinstance(value, wanted) or isinstance(value, bool) != (wanted is bool):
            raise SizeFieldError(
                f"field {name!r} of case {case!r} takes {wanted.__name__}, got {value!r}"
            )
    changed: SizeT = replace(picked, **(changes or {}))
    return changed


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f". Did you mean {near[0]!r}?" if near else ""


def parse_changes(texts: Iterable[str]) -> dict[str, Any]:
    """What `--set batch=16 --set stage_widths=(64,128)` changes, by field.

    Raises:
        SizeFieldError: A text is not of that form.
    """
    changes = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            changes[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            raise SizeFieldError(
                f"--set {text!r} is not understood; write FIELD=VALUE, for example batch=16"
            ) from None
    return changes


def data_generator(seed: int) -> torch.Generator:
    """A seeded generator for data on the default device, so that `torch.device` moves a case."""
    device = torch.get_default_device()
    # Meta tensors have no generator of their own and take the CPU's.
    return torch.Generator("cpu" if device.type == "meta" else device).manual_seed(seed)


def run(build: Callable[..., Case]) -> None:
    """Read the command line, build the case, and print loss and milliseconds of each step."""
    module = sys.modules[build.__module__]
    parser = argparse.ArgumentParser(
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sizes = "\n".join(f"  {name:8}{size}" for name, size in module.SIZES.items())
    parser.epilog = f"sizes:\n{sizes}"
    parser.add_argument("--size", default="small", help="one of the sizes below (default: small)")
    parser.add_argument("--steps", type=int, default=3, help="training steps (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="weights, data, dropout (default: 0)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="change a field of the size, as batch=16; may be repeated",
    )
    options = parser.parse_args()
    try:
        case = build(options.size, seed=options.seed, **parse_changes(options.set))
    except (UnknownSizeError, SizeFieldError) as error:
        parser.error(str(error))
    for number in range(1, options.steps + 1):
        start = time.perf_counter()
        loss = case.step().item()
        step_ms = (time.perf_counter() - start) * 1e3
        print(f"step {number}  loss {loss:.6f}  {step_ms:.0f} ms", flush=True)
