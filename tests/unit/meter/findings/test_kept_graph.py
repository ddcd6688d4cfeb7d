import gc

import pytest
import torch
from torch import nn

ROWS = 64
ACTIVATIONS = ROWS * 32 * 4


@pytest.fixture(autouse=True)
def _no_graphs_of_other_tests():
    gc.collect()


def test_losses_with_their_graphs_add_up(find_in):
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    history = []

    def step():
        optimizer.zero_grad()
        loss = model(torch.randn(ROWS, 32)).square().mean()
        loss.backward(retain_graph=True)
        optimizer.step()
        history.append(loss)

    finding = find_in(step, warmup=3)["kept-graph"]
    # Of each of three steps: the batch, the tanh and the output, which the square needs.
    assert finding.bytes == 3 * 3 * ACTIVATIONS
    assert len(finding.tensors) == 9
    assert "kept for backward by addmm, pow" in finding.detail


def test_graph_from_a_recorded_step_has_a_line(find_in, is_here):
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    history = []

    def step():
        optimizer.zero_grad()
        loss = model(torch.randn(ROWS, 32)).square().mean()  # here
        loss.backward(retain_graph=True)
        optimizer.step()
        history.append(loss)

    assert is_here(find_in(step, warmup=0, steps=2)["kept-graph"])


def test_detached_losses_keep_no_graph(find_in):
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    history = []

    def step():
        optimizer.zero_grad()
        loss = model(torch.randn(ROWS, 32)).square().mean()
        loss.backward(retain_graph=True)
        optimizer.step()
        history.append(loss.detach())

    assert "kept-graph" not in find_in(step, warmup=3)
