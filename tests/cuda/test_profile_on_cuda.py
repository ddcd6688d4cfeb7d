"""What can only be tried where a GPU is. Nothing here has been run by the authors."""

import pytest
import torch
from torch import nn

import legroom

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


def test_the_books_balance_on_a_gpu():
    net = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.randn(512, 256, device="cuda")

    def step():
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        optimizer.step()

    torch.cuda.reset_peak_memory_stats()
    profile = legroom.profile(step)
    assert profile.device.startswith("cuda")
    assert sum(profile.kinds.values()) == profile.peak_bytes
    assert profile.peak_bytes == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.02)
