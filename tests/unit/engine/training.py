"""Trains a tiny model plain and fitted from the same state, and compares everything by its bytes.

In go a model and a function that runs one step up to the gradients; out comes the handle of the
fitted twin, after every loss, gradient, parameter, buffer and the random state were equal.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import legroom
from legroom.engine import Fitted, RunReport

NUM_STEPS = 3
Gradients = Callable[[nn.Module, int], torch.Tensor]
Seen = dict[str, bytes]


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The tensor's values, as they lie in memory when it is contiguous."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def state_of(model: nn.Module) -> Seen:
    """Every gradient, parameter and buffer of a model, and the random state."""
    seen = {"random state": bytes_of(torch.get_rng_state())}
    for name, param in model.named_parameters():
        seen[name] = bytes_of(param)
        seen[f"{name}.grad"] = b"none" if param.grad is None else bytes_of(param.grad)
    for name, buffer in model.named_buffers():
        seen[name] = bytes_of(buffer)
    return seen


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer with state, over what is trained."""
    trained = [param for param in model.parameters() if param.requires_grad]
    return torch.optim.SGD(trained, lr=0.05, momentum=0.9)


def train(
    model: nn.Module,
    gradients: Gradients,
    optimizer: torch.optim.Optimizer,
    *,
    num_steps: int = NUM_STEPS,
    seed: int = 7,
) -> Seen:
    """Run some steps from a seed; everything that could be seen of them."""
    torch.manual_seed(seed)
    seen: Seen = {}
    for step in range(num_steps):
        loss = gradients(model, step)
        seen[f"step {step}: loss"] = bytes_of(loss)
        seen |= {f"step {step}: {name}": value for name, value in state_of(model).items()}
        del loss
        optimizer.step()
        optimizer.zero_grad()
    return seen | state_of(model)


def first_difference(expected: Seen, actual: Seen) -> str | None:
    """The first name under which the two differ; None if they are equal."""
    names = [*expected, *(name for name in actual if name not in expected)]
    return next((name for name in names if expected.get(name) != actual.get(name)), None)


def check_planned(report: RunReport, *, within_budget: bool = True) -> None:
    """Something is remade, and the steps kept to the budget."""
    assert report.ways.keys() & {"remake", "replay"}, report.ways
    assert not [what for what, _ in report.not_planned if what == "a graph"], report.not_planned
    if within_budget:
        assert report.measured_peak_bytes is not None
        assert report.measured_peak_bytes <= report.budget_bytes


def check_same(
    model: nn.Module,
    gradients: Gradients,
    *,
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    within_budget: bool = True,
    is_remade: bool = True,
    num_steps: int = NUM_STEPS,
    **options: Any,
) -> Fitted:
    """Train a copy of the model plain and the model fitted; fail unless all is bit-equal.

    The handle that comes back is undone.

    Args:
        is_remade: Whether the plan must make something again.
    """
    expected_model = copy.deepcopy(model)
    optimizer = make_optimizer(expected_model)
    expected = train(expected_model, gradients, optimizer, num_steps=num_steps)
    optimizer = make_optimizer(model)
    if "budget" not in options:
        options.setdefault("activations", "60%")
    handle = legroom.fit(model, optimizer=optimizer, **options)
    try:
        actual = train(model, gradients, optimizer, num_steps=num_steps)
    finally:
        handle.undo()
    difference = first_difference(expected, actual)
    assert difference is None, f"{difference} differs"
    if is_remade:
        check_planned(handle.report(), within_budget=within_budget)
    return handle


def check_prediction(handle: Fitted, *, rel: float) -> None:
    """The measured peak is the predicted one."""
    report = handle.report()
    assert report.measured_peak_bytes is not None
    off = abs(report.measured_peak_bytes - report.predicted_peak_bytes)
    assert off <= rel * report.predicted_peak_bytes, report


class Block(nn.Module):
    """A residual block of a transformer without its attention."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Value plus what the block adds."""
        return value + self.dropout(self.down(F.gelu(self.up(self.norm(value)))))


class Net(nn.Module):
    """Some blocks and a loss: small, and with much to remake."""

    def __init__(self, width: int = 16, num_blocks: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(num_blocks))
        self.head = nn.Linear(width, 8)

    def features(self, value: torch.Tensor) -> torch.Tensor:
        """What comes out of the last block."""
        for block in self.blocks:
            value = block(value)
        return value

    def forward(self, value: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return F.cross_entropy(self.head(self.features(value)), target)


def batch(step: int, *, rows: int = 256, width: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and targets of one step: the same whenever they are asked for."""
    numbers = torch.Generator().manual_seed(100 + step)
    value = torch.randn(rows, width, generator=numbers)
    return value, torch.randint(0, 8, (rows,), generator=numbers)


def images(step: int, *, rows: int = 8, channels: int = 4, size: int = 12) -> torch.Tensor:
    """A small batch of images."""
    numbers = torch.Generator().manual_seed(200 + step)
    return torch.randn(rows, channels, size, size, generator=numbers)


def backward_of_batch(model: nn.Module, step: int) -> torch.Tensor:
    """The usual loop: forward, backward."""
    loss: torch.Tensor = model(*batch(step))
    loss.backward()
    return loss
