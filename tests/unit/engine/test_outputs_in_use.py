"""Calls that return more than a loss: planned for what the loop takes gradients of."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import legroom
from legroom.engine._outputs_in_use import KEPT
from tests.unit.engine.training import Block, bytes_of


class Model(nn.Module):
    """Returns a loss of its own beside its numbers."""

    keeps = False

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(16, 0.1) for _ in range(3)))
        self.head = nn.Linear(16, 32)

    def forward(self, value):
        hidden = self.blocks(value)
        if self.keeps:
            self.penalty = hidden.square().mean()
        logits = self.head(hidden)
        return {"loss": logits.logsumexp(-1).mean(), "logits": logits}


class Keeping(Model):
    """Keeps another loss in an attribute."""

    keeps = True


def of_loss(model, output):
    return output["loss"]


def of_logits(model, output):
    return F.cross_entropy(output["logits"], torch.arange(512) % 32)


def of_both(model, output):
    return of_loss(model, output) + 0.1 * of_logits(model, output)


def of_attribute(model, output):
    return of_loss(model, output) + model.penalty


def trained(loss_of, num_micro=1, make=Model, **options):
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.Adam(model.parameters())
    handle = legroom.fit(model, optimizer=optimizer, **options) if options else None
    for _ in range(5):
        for _ in range(num_micro):
            loss_of(model, model(torch.randn(512, 16))).backward()
        optimizer.step()
        optimizer.zero_grad()
    return b"".join(bytes_of(param) for param in model.parameters()), handle


@pytest.mark.parametrize("loss_of", [of_loss, of_logits, of_both])
@pytest.mark.parametrize("num_micro", [1, 2])
def test_calls_are_planned_for_the_outputs_in_use(loss_of, num_micro):
    plain, _ = trained(loss_of, num_micro)
    fitted, handle = trained(loss_of, num_micro, activations="60%")
    assert fitted == plain
    assert not handle.left_plain
    assert handle.report().predicted_peak_bytes < handle.report().plain_peak_bytes


def test_calls_stay_plain_where_an_attribute_is_in_use():
    plain, _ = trained(of_attribute, make=Keeping)
    fitted, handle = trained(of_attribute, make=Keeping, activations="60%")
    assert fitted == plain
    assert handle.left_plain == (("4 calls", KEPT),)


def test_without_an_optimizer_a_backward_pass_ends_the_look():
    torch.manual_seed(0)
    model = Model()
    handle = legroom.fit(model, activations="60%")
    for _ in range(3):
        of_loss(model, model(torch.randn(512, 16))).backward()
    assert not handle.left_plain
    assert handle.plan.decisions
    (kind,) = handle._kinds
    assert kind.num_calls == 2
