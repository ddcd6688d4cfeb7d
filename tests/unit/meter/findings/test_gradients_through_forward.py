import pytest
import torch
from torch import nn

PARAMETERS = 2 * (64 * 64 + 64) * 4


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))


@pytest.fixture
def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3)


X = torch.randn(64, 64)


def test_gradients_set_to_zero_stay_alive(find_in, model, optimizer, is_here):
    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = model(X).square().mean()  # here
        loss.backward()
        optimizer.step()

    finding = find_in(step)["gradients-through-forward"]
    assert finding.bytes == PARAMETERS
    assert len(finding.tensors) == 4
    assert "never released" in finding.detail
    assert is_here(finding)


def test_zero_grad_after_forward_is_too_late(find_in, model, optimizer):
    def step():
        loss = model(X).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    finding = find_in(step)["gradients-through-forward"]
    assert finding.bytes == PARAMETERS
    assert "released only after forward" in finding.detail


@pytest.mark.parametrize("is_first", [True, False])
def test_zero_grad_before_forward_is_fine(find_in, model, optimizer, is_first):
    def step():
        if is_first:
            optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
        if not is_first:
            optimizer.zero_grad()

    assert "gradients-through-forward" not in find_in(step)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_accumulation_is_no_finding(find_in, model, optimizer, set_to_none):
    def step():
        for _ in range(3):
            model(X).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)

    assert "gradients-through-forward" not in find_in(step)
