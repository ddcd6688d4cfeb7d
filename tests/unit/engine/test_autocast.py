"""Under autocast: backward is traced as the program calls it, outside of autocast or inside."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import legroom
from legroom.capture import backward_habit
from tests.unit.engine.training import check_same, sgd, train


@pytest.fixture(autouse=True)
def _no_habit_yet(monkeypatch):
    monkeypatch.setattr(backward_habit, "is_under_autocast", False)


class Attending(nn.Module):
    """With dropout PyTorch spells attention out, in float32 whatever it is given."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)

    def forward(self, value):
        batch, length, width = value.shape
        parts = self.project(value).view(batch, length, 3, 2, 16).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, dropout_p=0.1)
        return self.out(F.gelu(mixed).transpose(1, 2).reshape(batch, length, width))


def gradients(model, step, *, inside=False):
    data = torch.randn(4, 64, 32, generator=torch.Generator().manual_seed(step))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(data).float().square().mean()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    return loss


def test_backward_outside_of_autocast_has_the_same_bits(caplog):
    check_same(Attending(), gradients, activations="100%", within_budget=False, is_remade=False)
    assert not backward_habit.is_under_autocast
    assert "autocast" not in caplog.text


def test_backward_inside_is_seen_and_planned_for(caplog):
    def inside(model, step):
        return gradients(model, step, inside=True)

    torch.manual_seed(0)
    plain, model = Attending(), Attending()
    model.load_state_dict(plain.state_dict())
    fitted = legroom.fit(model, activations="100%")
    train(model, inside, sgd(model), num_steps=1)
    assert caplog.text.count("backward() is called under autocast") == 1
    model.load_state_dict(plain.state_dict())
    expected = train(plain, inside, sgd(plain))
    found = train(model, inside, sgd(model))
    fitted.undo()
    assert found == expected
    assert caplog.text.count("backward() is called under autocast") == 1
