"""What people write in a training loop around a fitted model: every bit as in plain PyTorch.

One net is fitted once; each test trains it from the same start, beside a plain one, in its own way.
"""

import copy
import functools
import io
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import legroom
from legroom.errors import DoubleBackwardError
from tests.unit.engine.training import (
    Net,
    backward_of_batch,
    batch,
    bytes_of,
    check_planned,
    check_same,
    first_difference,
    sgd,
    state_of,
    train,
)


@dataclass
class Shared:
    """A fitted net, and where it began."""

    model: Net
    optimizer: torch.optim.Optimizer
    handle: legroom.Fitted
    start: dict[str, Any]

    def check(self, gradients, *, add_hooks=lambda model: ()):
        """Train plain and fitted from the start; fail unless all is bit-equal."""
        plain = Net()
        plain.load_state_dict(self.start)
        add_hooks(plain)
        expected = train(plain, gradients, sgd(plain))
        self.reset()
        hooks = add_hooks(self.model)
        try:
            actual = train(self.model, gradients, self.optimizer)
        finally:
            for hook in hooks:
                hook.remove()
        assert first_difference(expected, actual) is None
        check_planned(self.handle.report())

    def reset(self):
        self.model.load_state_dict(self.start)
        self.optimizer.state.clear()
        self.optimizer.zero_grad()


@pytest.fixture(scope="module")
def fitted_once():
    torch.manual_seed(0)
    model = Net()
    start = copy.deepcopy(model.state_dict())
    optimizer = sgd(model)
    handle = legroom.fit(model, activations="60%", optimizer=optimizer)
    train(model, backward_of_batch, optimizer)
    yield Shared(model, optimizer, handle, start)
    handle.undo()


@pytest.fixture
def shared(fitted_once):
    fitted_once.reset()
    yield fitted_once
    fitted_once.optimizer.step()  # a step that a test began is being measured


def test_clipping_and_scaling(shared):
    def gradients(model, step):
        loss = model(*batch(step))
        (loss * 1024).backward()
        for param in model.parameters():
            param.grad.div_(1024)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        return loss

    shared.check(gradients)


def test_gradients_of_micro_batches_add_up(shared):
    def gradients(model, step):
        for micro in range(3):
            loss = model(*batch(10 * step + micro)) / 3
            loss.backward()
        return loss

    shared.check(gradients)


def test_several_forwards_before_one_backward(shared):
    def gradients(model, step):
        losses = [model(*batch(10 * step + each)) for each in range(3)]
        loss = losses[0] + 2 * losses[1] + losses[2]
        loss.backward()
        return loss

    shared.check(gradients)


def test_a_graph_that_is_retained_gives_twice(shared):
    def gradients(model, step):
        loss = model(*batch(step))
        loss.backward(retain_graph=True)
        loss.backward()
        return loss

    shared.check(gradients)


def test_a_graph_is_used_up_once(shared):
    loss = shared.model(*batch(0))
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_grad_returns_what_backward_would_add(shared):
    def gradients(model, step):
        loss = model(*batch(step))
        params = list(model.parameters())
        assert all(param.grad is None for param in params)
        found = torch.autograd.grad(loss, params)
        assert all(param.grad is None for param in params)
        for param, gradient in zip(params, found, strict=True):
            param.grad = gradient
        return loss

    shared.check(gradients)


def test_backward_into_some_inputs_only(shared):
    def gradients(model, step):
        loss = model(*batch(step))
        loss.backward(inputs=[model.head.weight, model.blocks[1].up.bias])
        assert model.blocks[0].up.weight.grad is None
        return loss

    shared.check(gradients)


def test_hooks_on_parameters_see_gradients(shared):
    seen = []

    def note(param):
        seen.append(bytes_of(param.grad))

    def add_hooks(model):
        return [
            model.blocks[0].up.weight.register_hook(lambda gradient: gradient * 1.5),
            model.head.bias.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01)),
            model.blocks[1].up.weight.register_post_accumulate_grad_hook(note),
            model.blocks[1].up.bias.register_post_accumulate_grad_hook(note),
        ]

    def gradients(model, step):
        for micro in range(2):
            loss = model(*batch(10 * step + micro))
            loss.backward()
        return loss

    shared.check(gradients, add_hooks=add_hooks)
    assert len(seen) == 2 * 2 * 2 * 3
    half = len(seen) // 2
    assert sorted(seen[:half]) == sorted(seen[half:])


def test_hooks_on_losses_run(shared):
    def gradients(model, step):
        loss = model(*batch(step))
        loss.register_hook(lambda gradient: gradient * 3)
        loss.backward()
        return loss

    shared.check(gradients)


def test_gradients_of_inputs_for_attacks(shared):
    def gradients(model, step):
        value, target = batch(step)
        value.requires_grad_()
        (slope,) = torch.autograd.grad(model(value, target), value)
        loss = model((value + 0.1 * slope.sign()).detach(), target)
        loss.backward()
        return loss

    shared.check(gradients)


def test_evaluating_in_between_is_plain(shared):
    def gradients(model, step):
        with torch.no_grad():
            assert not model(*batch(50)).requires_grad
        loss = model(*batch(step))
        model.eval()
        with torch.inference_mode():
            evaluated = model(*batch(51))
        model.train()
        loss.backward()
        return loss.detach() + evaluated

    shared.check(gradients)


def test_training_in_eval_mode_is_planned_too(shared):
    def gradients(model, step):
        model.eval()
        loss = model(*batch(step))
        loss.backward()
        model.train()
        return loss

    shared.check(gradients)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_call_under_checkpoint_is_left_plain(shared, use_reentrant):
    def gradients(model, step):
        value, target = batch(step)
        value.requires_grad_()
        loss = checkpoint(model, value, target, use_reentrant=use_reentrant)
        loss.backward()
        return loss

    shared.check(gradients)
    listed = [why for _, why in shared.handle.report().not_planned]
    assert any("checkpoint" in why for why in listed)


def test_an_exception_in_backward_loses_nothing(shared):
    class Stop(Exception):
        pass

    def gradients(model, step):
        if step == 1:

            def stop(gradient):
                raise Stop

            hook = model.blocks[0].norm.weight.register_hook(stop)
            with pytest.raises(Stop):
                model(*batch(99)).backward()
            hook.remove()
            model.zero_grad()
        return backward_of_batch(model, step)

    shared.check(gradients)


def test_an_exception_in_forward_loses_nothing(shared):
    class Stop(Exception):
        pass

    def stop(module, args):
        raise Stop

    def gradients(model, step):
        if step == 1:
            hook = model.register_forward_pre_hook(stop)
            with pytest.raises(Stop):
                model(*batch(99))
            hook.remove()
        return backward_of_batch(model, step)

    shared.check(gradients)


def test_batches_from_workers(shared):
    data = TensorDataset(*batch(0, rows=768))

    def gradients(model, step):
        loader = DataLoader(data, batch_size=256, num_workers=1)
        value, target = list(loader)[step]
        loss = model(value, target)
        loss.backward()
        return loss

    shared.check(gradients)


def test_gradients_of_gradients_are_refused_at_once(shared):
    value, target = batch(0)
    backward_of_batch(shared.model, 0)
    before = state_of(shared.model)
    loss = shared.model(value, target)
    torch.set_rng_state(torch.frombuffer(bytearray(before["random state"]), dtype=torch.uint8))
    with pytest.raises(DoubleBackwardError, match="cannot be differentiated twice"):
        torch.autograd.grad(loss, shared.model.head.weight, create_graph=True)
    with pytest.raises(DoubleBackwardError):
        loss.backward(create_graph=True)
    assert first_difference(before, state_of(shared.model)) is None


def test_a_penalty_on_gradients_of_inputs_is_plain(shared):
    def gradients(model, step):
        value, target = batch(step, rows=192)  # of a kind of its own
        loss = model(value, target)
        value = value.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(value, target), value, create_graph=True)
        loss = loss + slope.pow(2).sum()
        loss.backward()
        return loss

    shared.check(gradients)
    assert any("create_graph" in why for _, why in shared.handle.report().not_planned)


def test_copies_and_pickles_are_plain(shared):
    model = shared.model
    assert list(model.state_dict()) == list(shared.start)
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(saved, weights_only=False),
    ]
    for each in copies:
        assert "_compiled_call_impl" not in vars(each)
        assert list(each.state_dict()) == list(shared.start)
        assert first_difference(state_of(model), state_of(each)) in (None, "random state")
    backward_of_batch(copies[0], 0)
    assert all(param.grad is not None for param in copies[0].parameters())


def test_pickles_of_recurrent_layers_are_plain():
    model = nn.LSTM(4, 4)
    plain = pickle.dumps(model)
    handle = legroom.fit(model, budget="100%")
    assert pickle.dumps(model) == plain
    assert "_compiled_call_impl" not in vars(copy.deepcopy(model))
    handle.undo()
    assert pickle.dumps(model) == plain
    assert "__getstate__" not in vars(model)


class UpdatesInBackward:
    """An optimizer for each parameter, which works as soon as the gradient is there."""

    def __init__(self, model):
        self.optimizers = [torch.optim.SGD([param], lr=0.05) for param in model.parameters()]
        for param, optimizer in zip(model.parameters(), self.optimizers, strict=True):
            param.register_post_accumulate_grad_hook(functools.partial(self.update, optimizer))

    @staticmethod
    def update(optimizer, param):
        optimizer.step()
        optimizer.zero_grad()

    def step(self):
        pass

    zero_grad = step


def test_optimizers_in_backward():
    model = Net()
    plain = copy.deepcopy(model)
    expected = train(plain, backward_of_batch, UpdatesInBackward(plain))
    updates = UpdatesInBackward(model)
    handle = legroom.fit(model, activations="60%", optimizer=updates.optimizers)
    actual = train(model, backward_of_batch, updates)
    handle.undo()
    assert first_difference(expected, actual) is None
    check_planned(handle.report())


def test_an_optimizer_that_divides_by_one_less_a_number():
    check_same(
        Net(), backward_of_batch, make_optimizer=lambda net: torch.optim.NAdam(net.parameters())
    )


def test_an_optimizer_that_asks_for_the_loss_itself():
    def trained(model, optimizer):
        losses = []

        def closure(step):
            optimizer.zero_grad()
            losses.append(bytes_of(backward_of_batch(model, step)))
            return torch.tensor(1.0)

        torch.manual_seed(7)
        for step in range(3):
            optimizer.step(functools.partial(closure, step))
        return losses, state_of(model)

    model = Net()
    plain = copy.deepcopy(model)
    expected = trained(plain, torch.optim.LBFGS(plain.parameters(), max_iter=3))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    handle = legroom.fit(model, activations="60%", optimizer=optimizer)
    actual = trained(model, optimizer)
    handle.undo()
    assert actual == expected
    check_planned(handle.report(), within_budget=False)


def test_updates_without_an_optimizer():
    class ByHand:
        def __init__(self, model):
            self.model = model

        @torch.no_grad()
        def step(self):
            for param in self.model.parameters():
                param.sub_(0.05 * param.grad)

        def zero_grad(self):
            self.model.zero_grad()

    model = Net()
    plain = copy.deepcopy(model)
    expected = train(plain, backward_of_batch, ByHand(plain))
    handle = legroom.fit(model, activations="60%")
    actual = train(model, backward_of_batch, ByHand(model))
    handle.undo()
    assert first_difference(expected, actual) is None
    check_planned(handle.report())


def test_micro_batches_keep_to_the_budget():
    def gradients(model, step):
        for micro in range(2):
            loss = model(*batch(10 * step + micro)) / 2
            loss.backward()
        return loss

    check_same(Net(), gradients, num_steps=6)  # planned again: gradients wait all along


def test_a_gradient_scaler_and_autocast():
    class Scaled:
        def __init__(self, model):
            self.optimizer = sgd(model)
            model.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
            self.scaler = model.scaler

        def step(self):
            self.scaler.step(self.optimizer)
            self.scaler.update()

        def zero_grad(self):
            self.optimizer.zero_grad()

    def gradients(model, step):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(*batch(step))
        model.scaler.scale(loss).backward()
        return loss

    model = Net()
    plain = copy.deepcopy(model)
    expected = train(plain, gradients, Scaled(plain))
    scaled = Scaled(model)
    handle = legroom.fit(model, activations="60%", optimizer=scaled.optimizer)
    actual = train(model, gradients, scaled)
    handle.undo()
    assert first_difference(expected, actual) is None
    check_planned(handle.report())
    assert scaled.scaler.get_scale() == 8192.0
