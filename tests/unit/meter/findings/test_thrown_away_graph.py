import contextlib

import pytest
import torch
from torch import nn

ROWS, WIDTH = 64, 32
X = torch.randn(ROWS, WIDTH)


def make_step(guard):
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        with guard():
            seen = model(X).square().mean()  # here
        loss = model(X).square().mean()
        loss.backward()
        optimizer.step()
        return seen.item()

    return step


def test_activations_of_an_unused_call_are_waste(find_in, is_here):
    finding = find_in(make_step(contextlib.nullcontext))["thrown-away-graph"]
    # The two tanhs and the output, which the square keeps.
    assert finding.bytes == (2 * ROWS * WIDTH + ROWS * 4) * 4
    assert len(finding.tensors) == 3
    assert is_here(finding)


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_calls_without_gradients_are_fine(find_in, guard):
    assert "thrown-away-graph" not in find_in(make_step(guard))


def test_two_calls_in_one_loss_are_fine(find_in, train):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))

    def loss():
        return (model(X) - model(-X)).square().mean()

    assert "thrown-away-graph" not in find_in(train(model, loss))
