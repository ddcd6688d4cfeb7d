"""The generator's state before a random operation, and the same operation from it again."""

from __future__ import annotations

from typing import Any

import torch


def random_state(device: str) -> torch.Tensor:
    """The state of the device's generator, as a small tensor on the CPU."""
    if device.startswith("cuda"):  # untested: no GPU where this was written
        return torch.cuda.get_rng_state(torch.device(device))
    return torch.get_rng_state()


def run_with_state(state: torch.Tensor, operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a random operation as it ran when the generator was in `state`; leave no trace in it."""
    device = next((arg.device for arg in args if isinstance(arg, torch.Tensor)), None)
    if device is None:
        device = torch.device(kwargs.get("device") or "cpu")
    name = str(device)
    before = random_state(name)
    _set_state(state, name)
    try:
        return operation(*args, **kwargs)
    finally:
        _set_state(before, name)


def _set_state(state: torch.Tensor, device: str) -> None:
    if device.startswith("cuda"):  # untested: no GPU where this was written
        torch.cuda.set_rng_state(state, torch.device(device))
    else:
        torch.set_rng_state(state)
