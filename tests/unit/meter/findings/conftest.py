"""Finds findings in small training steps, and lines that a test marks with `# here`."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn

from legroom.meter import Finding, profile

FindIn = Callable[..., dict[str, Finding]]


@pytest.fixture
def find_in() -> FindIn:
    """Profile a step and return its findings by name."""

    def find(step: Callable[[], object], **options: int) -> dict[str, Finding]:
        gc.collect()  # what an earlier test left is alive until then, and in the books
        return {finding.name: finding for finding in profile(step, **options).findings}

    return find


@pytest.fixture
def train() -> Callable[..., Callable[[], None]]:
    """A step that trains `model` on `loss()`, by SGD, which has neither state nor scratch."""

    def make(
        model: nn.Module,
        loss: Callable[[], torch.Tensor],
        optimizer: torch.optim.Optimizer | None = None,
    ) -> Callable[[], None]:
        chosen = optimizer or torch.optim.SGD(model.parameters(), lr=1e-3)

        def step() -> None:
            chosen.zero_grad()
            loss().backward()
            chosen.step()

        return step

    return make


@pytest.fixture
def is_here(request: pytest.FixtureRequest) -> Callable[[Finding], bool]:
    """Whether a finding names a line of this test file that is marked `# here`."""
    lines = request.path.read_text(encoding="utf-8").splitlines()

    def check(finding: Finding) -> bool:
        return finding.file.endswith(request.path.name) and lines[finding.line - 1].endswith(
            "# here"
        )

    return check
