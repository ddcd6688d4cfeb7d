"""The host tier on a real device. Nothing here has been run by the authors."""

import pytest
import torch
from torch import nn

import legroom
from legroom.meter import tier_speed
from legroom.tiers import Host

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


@pytest.fixture
def host():
    with Host.open().closing() as tier:
        yield tier


@pytest.mark.parametrize("num_bytes", [1, 4096, 70_001, 32 << 20])
def test_bytes_come_back(host, num_bytes):
    x = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, device="cuda")
    expected = x.clone()
    ticket = host.settle(host.put(x))
    x.zero_()
    y = host.get(host.fetch(ticket), (num_bytes,), (1,), torch.uint8)
    assert torch.equal(y, expected)


def test_memory_that_is_reused_at_once(host):
    for _ in range(50):
        x = torch.randn(1 << 20, device="cuda")
        expected = x.sum()
        ticket = host.put(x)
        del x
        ticket = host.settle(ticket)
        torch.full((1 << 20,), 7.0, device="cuda")
        assert torch.equal(host.get(ticket, (1 << 20,), (1,), torch.float32).sum(), expected)


def test_offloading_has_the_same_bits(host):
    net = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(8))).cuda()
    x = torch.randn(1024, 512, device="cuda")
    net(x).square().mean().backward()
    plain = [param.grad.clone() for param in net.parameters()]
    torch.cuda.reset_peak_memory_stats()
    net.zero_grad()
    with legroom.offload(tier=host, in_flight_bytes=0, ahead_bytes=4 << 20) as moved:
        loss = net(x).square().mean()
    loss.backward()
    assert moved.num_moved >= 8
    assert all(torch.equal(a, p.grad) for a, p in zip(plain, net.parameters(), strict=True))


def test_its_speed_is_measured(host):
    speed = tier_speed(host, fresh=True)
    assert speed.bytes_per_ms_put > 0
    assert speed.bytes_per_ms_get > 0
