"""Bare updates: what an optimizer does to tensors, without anybody noticing."""

import copy
import sys
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.optim import Optimizer, lr_scheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from legroom.capture import AbstractTrainingObserver, make_state, update_alone, updating_optimizers
from legroom.capture._step_capture import _observed_by
from legroom.errors import TorchInterfaceError

ELEMENTWISE = [
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop",
    "SGD",
]  # fmt: skip
OPTIMIZERS = [
    *((name, {"foreach": foreach}) for name in ELEMENTWISE for foreach in (False, True)),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("Adam", {"amsgrad": True, "lr": "tensor", "foreach": False}),
    ("Adam", {"fused": True}),
    ("Adafactor", {}),
    ("Muon", {}),
    ("LBFGS", {"max_iter": 3}),
]
WITH_STATE = {name for name, _ in OPTIMIZERS} - {"LBFGS"}


def made(name, options, params=None):
    options = {
        key: torch.tensor(0.1) if value == "tensor" else value for key, value in options.items()
    }
    params = params or [nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4, 2))]
    return getattr(torch.optim, name)(params, **options)


def seen(optimizer):
    """What Python sees of an optimizer, its state and the values of its parameters apart."""
    rest = {key: value for key, value in vars(optimizer).items() if key != "state"}
    groups = [
        {
            key: id(item) if isinstance(item, torch.Tensor) else item
            for key, item in group.items()
            if key != "params"
        }
        for group in optimizer.param_groups
    ]
    return {key: id(value) for key, value in rest.items()}, groups


def give_gradients(optimizer):
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.ones_like(param)


class Count:
    def __init__(self):
        self.calls = 0

    def __call__(self, *args, **kwargs):
        self.calls += 1


@pytest.fixture
def count():
    """Counts calls of a hook on each update of any optimizer."""
    count = Count()
    handles = [register(count) for register in GLOBAL]
    yield count
    for handle in handles:
        handle.remove()


GLOBAL = register_optimizer_step_pre_hook, register_optimizer_step_post_hook


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_nobody_hears_of_an_update_alone(name, options, count):
    optimizer = made(name, options)
    own, parameters = Count(), [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.register_step_pre_hook(own)
    optimizer.register_step_post_hook(own)
    optimizer.register_state_dict_pre_hook(own)
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    give_gradients(optimizer)
    before = seen(optimizer), scheduler.state_dict()
    with update_alone([optimizer]) as update:
        update()
        assert optimizer.state or name == "SGD"
    assert (seen(optimizer), scheduler.state_dict()) == before
    assert not hasattr(optimizer, "_opt_called")
    assert (own.calls, count.calls) == (0, 0)
    for param in parameters:
        param.grad = torch.ones_like(param)
    optimizer.step(*([lambda: torch.zeros(())] if name == "LBFGS" else []))
    assert (own.calls, count.calls) == (2, 2)
    assert optimizer._opt_called


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_update_alone_has_the_bits_of_step(name, options):
    plain, alone = made(name, options), None
    params = [p.detach().clone().requires_grad_() for p in plain.param_groups[0]["params"]]
    alone = made(name, options, params)
    lr_scheduler.StepLR(alone, 1)
    for _ in range(2):
        give_gradients(plain)
        give_gradients(alone)
        plain.step(*([lambda: 0.0] if name == "LBFGS" else []))
        with update_alone([alone]) as update:
            update()
    for mine, theirs in zip(params, plain.param_groups[0]["params"], strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_state_is_made_on_fake_tensors(name, options, count):
    mode = FakeTensorMode()
    with mode:
        params = [nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4, 2))]
        frozen = nn.Parameter(torch.randn(2, 2), requires_grad=False)
        optimizer = made(name, options, [*params, frozen])
        scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        optimizer.register_step_post_hook(count)
        marks = [torch.ones_like(param) for param in params]
        for param, mark in zip(params, marks, strict=True):
            param.grad = mark
        before = seen(optimizer), scheduler.state_dict()
        make_state(optimizer)
    assert (seen(optimizer), scheduler.state_dict()) == before
    assert [param.grad for param in params] == marks
    assert count.calls == 0
    if name == "LBFGS":
        assert optimizer.state
    elif name != "SGD" or options.get("momentum"):
        assert set(optimizer.state) >= set(params)
    assert name == "Adagrad" or not optimizer.state.get(frozen)  # that makes it at once


@pytest.mark.parametrize("name", sorted(WITH_STATE))
def test_state_made_has_the_shapes_of_real_state(name):
    options = {"momentum": 0.9} if name == "SGD" else {}
    real, other = made(name, options), made(name, options)
    give_gradients(real)
    real.step()
    make_state(other)
    for mine, theirs in zip(other.state.values(), real.state.values(), strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            if isinstance(value, torch.Tensor):
                assert (mine[key].shape, mine[key].dtype) == (value.shape, value.dtype)


def test_state_that_is_there_stays():
    optimizer = made("Adam", {})
    give_gradients(optimizer)
    optimizer.step()
    before = copy.deepcopy(list(optimizer.state.values()))
    make_state(optimizer)
    after = list(optimizer.state.values())
    assert [state["step"] for state in after] == [state["step"] for state in before]
    assert all(torch.equal(a["exp_avg"], b["exp_avg"]) for a, b in zip(after, before, strict=True))


def test_state_of_lbfgs_is_made():
    optimizer = made("LBFGS", {"max_iter": 3})
    make_state(optimizer)
    (state,) = optimizer.state.values()
    assert state["func_evals"] >= 1


def test_averages_of_weights_are_not_moved():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer.register_step_post_hook(lambda *_: average.update_parameters(model))
    make_state(optimizer)
    assert int(average.n_averaged) == 0


class Restless(Optimizer):
    """An optimizer that keeps count of what it did outside of its state."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1, "seen": 0, "history": [], "rate": torch.ones(1)})
        self.num_steps, self.log = 0, []

    @torch.no_grad()
    def step(self, closure=None):
        self.num_steps += 1
        self.log.append("step")
        self.made_late = True
        for group in self.param_groups:
            group["seen"] += 1
            group["history"].append(group["seen"])
            group["rate"].mul_(0.5)
            group["late"] = 1
            for param in group["params"]:
                self.state[param]["steps"] = torch.ones(())


def test_counters_of_an_optimizer_stay():
    optimizer = Restless([nn.Parameter(torch.ones(2))])
    (group,) = optimizer.param_groups
    make_state(optimizer)
    assert (optimizer.num_steps, optimizer.log) == (0, [])
    assert (group["seen"], group["history"], float(group["rate"])) == (0, [], 1.0)
    assert "late" not in group
    assert not hasattr(optimizer, "made_late")
    assert len(optimizer.state) == 1


class Demanding(Restless):
    """As SAM: asks for a closure, though its signature does not."""

    def step(self, closure=None):
        assert closure is not None, "needs a closure"
        closure()
        super().step()


def test_closure_is_given_to_who_asks_for_it():
    optimizer = Demanding([nn.Parameter(torch.ones(2))])
    make_state(optimizer)
    assert len(optimizer.state) == 1


def test_an_error_of_the_update_is_its_own():
    class Broken(Restless):
        def step(self, closure=None):
            self.num_steps += 1
            raise ValueError("no such rate")

    optimizer = Broken([nn.Parameter(torch.ones(2))])
    with pytest.raises(ValueError, match="no such rate"):
        make_state(optimizer)
    assert optimizer.num_steps == 0
    assert optimizer.param_groups[0]["params"][0].grad is None


class Lookahead(Optimizer):
    """An optimizer around another one that it calls."""

    def __init__(self, base):
        super().__init__(base.param_groups, {})
        self.base = base

    def step(self, closure=None):
        self.base.step()


def test_hooks_of_an_optimizer_inside_are_not_called(count):
    base = made("SGD", {"momentum": 0.9})
    lr_scheduler.StepLR(base, 1)
    base.register_step_post_hook(count)
    give_gradients(base)
    with update_alone([Lookahead(base)]) as update:
        update()
    assert count.calls == 0
    assert not hasattr(base, "_opt_called")
    assert len(base.state) == 2


class Wrapper(Optimizer):
    """As those of frameworks: an optimizer that was not made as one."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.num_steps = 0

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)

    def step(self, closure=None):
        self.num_steps += 1
        self.optimizer.step(closure)


def test_wrappers_are_left_for_what_updates():
    inner = made("Adam", {})
    wrapper = Wrapper(Wrapper(inner))
    assert updating_optimizers([wrapper, inner, wrapper.optimizer]) == (inner,)
    make_state(wrapper)
    assert wrapper.num_steps == 0
    assert len(inner.state) == 2


def test_legroom_itself_hears_of_an_update_alone():
    heard = []

    class Observer(AbstractTrainingObserver):
        def optimizer_starts(self, optimizer):
            heard.append("starts")

        def optimizer_ends(self, optimizer):
            heard.append("ends")

    optimizer = made("SGD", {})
    with _observed_by(Observer()), update_alone([optimizer]) as update:
        update()
    assert heard == ["starts", "ends"]


def test_hooks_may_ask_for_an_update_alone():
    """PyTorch walks through its tables of hooks then."""
    optimizer = made("SGD", {"momentum": 0.9})
    optimizer.register_step_post_hook(lambda *_: make_state(optimizer))
    make_state(optimizer)
    give_gradients(optimizer)
    handle = register_optimizer_step_post_hook(lambda *_: make_state(optimizer))
    try:
        optimizer.step()
    finally:
        handle.remove()
    assert isinstance(optimizer._optimizer_step_post_hooks, OrderedDict)


def test_hooks_kept_elsewhere_are_an_error(monkeypatch):
    module = sys.modules["torch.optim.optimizer"]
    monkeypatch.delattr(module, "_global_optimizer_post_hooks")
    with pytest.raises(TorchInterfaceError, match="_global_optimizer_post_hooks"):
        make_state(made("SGD", {}))
