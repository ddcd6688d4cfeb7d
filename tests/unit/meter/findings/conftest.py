"""Finds findings in small training steps, and lines that a test marks with `# here`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from legroom.meter import Finding, profile

FindIn = Callable[..., dict[str, Finding]]


@pytest.fixture(autouse=True)
def _one_quiet_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def find_in() -> FindIn:
    """Profile a step and return its findings by name."""

    def find(step: Callable[[], object], **options: int) -> dict[str, Finding]:
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
