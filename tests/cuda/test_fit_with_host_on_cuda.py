"""Plans that hold tensors in pinned host memory, on a device. Never run by the authors."""

import copy

import pytest
import torch
from torch import nn

import legroom
from legroom.errors import UsageError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


def model():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(8))).cuda()


def batch(step):
    numbers = torch.Generator("cuda").manual_seed(step)
    return torch.randn(4096, 512, device="cuda", generator=numbers)


def train(net, steps=4):
    """Losses and parameters after some steps, and the peak of the last one."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        loss = net(batch(step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().cpu())
    torch.cuda.synchronize()
    peak_bytes = torch.cuda.max_memory_allocated()
    return losses, [param.detach().cpu() for param in net.parameters()], peak_bytes


@pytest.mark.parametrize("options", [{}, {"disk": True}], ids=["host", "host and disk"])
def test_training_from_host_memory_is_equal_and_lower(options):
    plain = model()
    fitted = copy.deepcopy(plain)
    losses, params, plain_bytes = train(plain)
    handle = legroom.fit(
        fitted, budget="100%", stash="20%", host=True, without=["remake", "replay"], **options
    )
    own_losses, own_params, own_bytes = train(fitted)
    assert all(map(torch.equal, losses, own_losses))
    assert all(map(torch.equal, params, own_params))
    assert own_bytes < plain_bytes
    report = handle.report()
    assert report.ways["host"]["tensors"] > 0
    assert report.measured_peak_bytes <= report.budget_bytes
    handle.undo()


def test_the_floor_is_lower_with_host_memory():
    def step():
        net(batch(0)).square().mean().backward()
        net.zero_grad()

    net = model()
    without, with_host = (legroom.plan(step, points=0, host=host) for host in (False, True))
    assert with_host.floor_peak_bytes < without.floor_peak_bytes


def test_a_model_on_the_processor_is_refused():
    net = nn.Linear(512, 512)
    handle = legroom.fit(net, budget="50%", host=True)
    with pytest.raises(UsageError, match="the step is on 'cpu'"):
        net(batch(0).cpu()).square().mean().backward()
    handle.undo()
