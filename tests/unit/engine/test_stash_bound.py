"""`fit(stash=...)`: what forward leaves for backward, bounded and measured."""

import pytest
import torch

import legroom
from legroom.errors import InfeasibleStashError, UsageError
from tests.unit.engine.training import Net, backward_of_batch, batch, check_same, sgd

SLACK_BYTES = 16 * 1024


def stash_of(model, optimizer):
    def step():
        backward_of_batch(model, 0)
        optimizer.step()
        optimizer.zero_grad()

    step()
    return legroom.profile(step, warmup=0).largest_stash_bytes


@pytest.mark.parametrize("share", [60, 30])
def test_forward_leaves_no_more_than_the_bound(share):
    torch.manual_seed(0)
    model = Net()
    plain_bytes = stash_of(model, sgd(model))
    optimizer = sgd(model)
    handle = legroom.fit(model, stash=f"{share}%", optimizer=optimizer)
    try:
        fitted_bytes = stash_of(model, optimizer)
    finally:
        handle.undo()
    assert fitted_bytes <= share / 100 * plain_bytes + SLACK_BYTES
    assert handle.plan.stash_bytes <= share / 100 * plain_bytes + SLACK_BYTES


def test_training_is_the_same_with_both_bounds():
    torch.manual_seed(0)
    handle = check_same(Net(), backward_of_batch, budget="90%", stash="40%")
    assert handle.plan.stash_bytes > 0


def test_a_bound_that_nothing_keeps_is_an_error_of_the_first_call():
    model = Net()
    handle = legroom.fit(model, stash=1, optimizer=sgd(model))
    try:
        with pytest.raises(InfeasibleStashError, match="keeps only"):
            model(*batch(0))
    finally:
        handle.undo()


def test_no_bound_at_all_is_refused():
    with pytest.raises(UsageError, match="stash="):
        legroom.fit(Net())


def test_compiled_convolutions_keep_no_copies_of_their_weights():
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Conv2d(32, 32, 3, padding=1))
    pictures, optimizer = torch.randn(4, 32, 8, 8), sgd(model)

    def step():
        model(pictures).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    plain_bytes = legroom.profile(step, warmup=0).largest_stash_bytes
    options = {"executor": "inductor", "exactness": "rounding", "optimizer": optimizer}
    handle = legroom.fit(model, budget="100%", preset="save-all", **options)
    try:
        step()
        fitted_bytes = legroom.profile(step, warmup=0).largest_stash_bytes
    finally:
        handle.undo()
    assert fitted_bytes <= plain_bytes + SLACK_BYTES  # a weight has 36 KiB
