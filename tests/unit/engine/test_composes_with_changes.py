"""What changes under a fitted model, or was there before it: shapes, parameters, compilers.

Each test trains plain and fitted from the same state and compares by bytes, as in
`test_composes.py`, or asserts with which words something is refused.
"""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal
from torch.nn import functional as F

import legroom
from legroom.errors import (
    InfeasibleBudgetError,
    UnplannedGradientError,
    UsageError,
)
from tests.unit.engine.training import (
    Net,
    backward_of_batch,
    batch,
    check_planned,
    check_same,
    first_difference,
    sgd,
    state_of,
    train,
)


@dataclass
class Result:
    loss: torch.Tensor
    scores: torch.Tensor


class Returning(Net):
    """Returns its loss and scores in the container that is asked for."""

    def forward(self, value, *, target, how="tuple", scale=1):
        scores = self.head(self.features(value)) * scale
        loss = F.cross_entropy(scores, target)
        if how == "dataclass":
            return Result(loss, scores)
        return {"loss": loss, "scores": scores} if how == "dict" else [loss, scores]


@pytest.mark.parametrize("how", [pytest.param("list", marks=pytest.mark.slow), "dict", "dataclass"])
def test_outputs_in_containers(how):
    def gradients(model, step):
        value, target = batch(step)
        output = model(value, target=target, how=how)
        loss = {"list": lambda: output[0], "dict": lambda: output["loss"]}.get(
            how, lambda: output.loss
        )()
        loss.backward()
        scores = output[1] if how == "list" else getattr(output, "scores", None)
        return loss if scores is None else loss + scores.detach().sum()

    check_same(Returning(), gradients)


def test_a_policy_may_return_a_distribution():
    class Policy(Net):
        def forward(self, value):
            value = self.features(value)
            return Independent(Normal(self.head(value), 1.0), 1), value.mean(1)

    def gradients(model, step):
        value, target = batch(step)
        actions, worth = model(value)
        loss = -(actions.log_prob(F.one_hot(target, 8).float()) * (1 - worth)).mean()
        loss.backward()
        return loss

    check_same(Policy(), gradients, activations="80%")


def test_gradients_besides_the_loss_are_refused_where_there_is_no_room_to_see():
    model = Returning()
    optimizer = sgd(model)
    handle = legroom.fit(model, budget="450KiB", optimizer=optimizer)
    value, target = batch(0)
    loss, scores = model(value, target=target)
    with pytest.raises(UnplannedGradientError, match="besides its loss"):
        (loss + scores.square().mean()).backward()
    handle.undo()


def test_arguments_that_are_no_tensors_change():
    def gradients(model, step):
        value, target = batch(step)
        loss = model(value, target=target, scale=1 + step % 2)[0]
        loss.backward()
        return loss

    check_same(Returning(), gradients, num_steps=8)


def test_a_function_with_the_loss_inside():
    model = Net()
    plain = copy.deepcopy(model)
    optimizer = sgd(model)

    def loss_of(value, target):
        return F.cross_entropy(model.head(model.features(value)), target, label_smoothing=0.1)

    handle = legroom.fit(loss_of, activations="60%", optimizer=optimizer)

    def gradients(trained, step):
        if trained is model:
            loss = handle(*batch(step))
        else:
            value, target = batch(step)
            scores = trained.head(trained.features(value))
            loss = F.cross_entropy(scores, target, label_smoothing=0.1)
        loss.backward()
        return loss

    expected = train(plain, gradients, sgd(plain))
    actual = train(model, gradients, optimizer)
    assert first_difference(expected, actual) is None
    check_planned(handle.report())
    handle.undo()


def test_few_new_shapes_are_planned_and_many_bounded():
    rows = [256, 192, 320, 128, 224, 96, 300, 300]

    def gradients(model, step):
        loss = model(*batch(step, rows=rows[step]))
        loss.backward()
        return loss

    model = Net()
    plain = copy.deepcopy(model)
    expected = train(plain, gradients, sgd(plain), num_steps=len(rows))
    optimizer = sgd(model)
    handle = legroom.fit(model, activations="60%", optimizer=optimizer)
    actual = train(model, gradients, optimizer, num_steps=len(rows))
    assert first_difference(expected, actual) is None
    check_planned(handle.report())
    handle.undo()


def test_a_batch_too_large_is_refused_and_the_next_goes_on():
    model = Net()
    plain = copy.deepcopy(model)
    expected = train(plain, backward_of_batch, sgd(plain))
    optimizer = sgd(model)
    handle = legroom.fit(model, budget=400_000, optimizer=optimizer)

    def gradients(trained, step):
        if step == 1:
            before = state_of(trained)
            with pytest.raises(InfeasibleBudgetError, match="no plan fits"):
                trained(*batch(step, rows=2048))
            assert first_difference(before, state_of(trained)) is None
        return backward_of_batch(trained, step)

    actual = train(model, gradients, optimizer)
    assert first_difference(expected, actual) is None
    check_planned(handle.report())
    handle.undo()


def test_fitting_after_plain_steps_and_undoing():
    model = Net()
    plain = copy.deepcopy(model)
    expected = train(plain, backward_of_batch, sgd(plain), num_steps=5)
    optimizer = sgd(model)
    handles = []

    def gradients(trained, step):
        if step == 1:
            handles.append(legroom.fit(trained, activations="60%", optimizer=optimizer))
        if step == 4:
            handles[0].undo()
            handles[0].undo()
            assert "_compiled_call_impl" not in vars(trained)
        return backward_of_batch(trained, step)

    actual = train(model, gradients, optimizer, num_steps=5)
    assert first_difference(expected, actual) is None
    check_planned(handles[0].report())


def test_a_model_is_fitted_once_at_a_time():
    model = Net()
    handle = legroom.fit(model, activations="60%")
    with pytest.raises(UsageError, match=r"already fitted.*undo"):
        legroom.fit(model, activations="50%")
    handle.undo()
    legroom.fit(model, activations="50%").undo()


def test_parameters_are_replaced_after_fitting():
    def replaced(param, *, factor=0.5):
        return nn.Parameter(param.detach() * factor)

    def gradients(model, step):
        if step == 1:
            model.blocks[0].up.weight = replaced(model.blocks[0].up.weight)
        if step == 2:
            block = model.blocks[1]
            block.up = nn.Linear(16, 32)
            block.down = nn.Linear(32, 16)
            nn.init.constant_(block.up.weight, 0.1)
            nn.init.constant_(block.up.bias, 0.1)
            nn.init.constant_(block.down.weight, 0.1)
            nn.init.constant_(block.down.bias, 0.1)
        return backward_of_batch(model, step)

    check_same(Net(), gradients, num_steps=5)


@pytest.mark.slow
def test_lazy_parameters_get_their_shapes_in_a_plain_call():
    def lazy():
        torch.manual_seed(3)
        return nn.Sequential(nn.LazyLinear(64), nn.GELU(), nn.LazyLinear(64), nn.GELU())

    def trained(model):
        torch.manual_seed(5)
        model(torch.randn(2, 16))
        optimizer = sgd(model)
        for _ in range(3):
            model(torch.randn(256, 16)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return state_of(model)

    expected = trained(lazy())
    model = lazy()
    handle = legroom.fit(model, activations="80%")
    assert first_difference(expected, trained(model)) is None
    report = handle.report()
    handle.undo()
    assert report.not_planned == (("1 call", "calls that give lazy parameters their shapes"),)
    assert report.ways.keys() & {"remake", "replay"}


def test_parts_are_frozen_thawed_and_hooked_on_the_way():
    def gradients(model, step):
        model.blocks[0].requires_grad_(step != 1)
        if step == 2:
            model.blocks[1].register_forward_hook(lambda module, args, output: output * 0.5)
        return backward_of_batch(model, step)

    model = Net()
    plain = copy.deepcopy(model)
    expected = train(plain, gradients, sgd(plain), num_steps=5)
    said = []
    optimizer = sgd(model)
    handle = legroom.fit(model, activations="80%", optimizer=optimizer)
    handle._on_event = said.append
    actual = train(model, gradients, optimizer, num_steps=5)
    handle.undo()
    assert first_difference(expected, actual) is None
    assert said == ["the model runs other operations than were planned: planning again"]
    check_planned(handle.report())


def through(called):
    """Gradients by calling something that stands for the model that is trained."""
    return lambda model, step: backward_of_batch(called, step)


@pytest.mark.parametrize("how", ["in place", "wrapped"])
def test_models_that_were_compiled_before(how):
    model = Net()
    plain = copy.deepcopy(model)
    expected = train(plain, backward_of_batch, sgd(plain))
    called = model
    if how == "in place":
        model.compile(backend="eager")
    else:
        called = torch.compile(model, backend="eager")
        with pytest.raises(UsageError, match="fit what that returned"):
            legroom.fit(model, activations="60%")
    optimizer = sgd(model)
    handle = legroom.fit(called, activations="60%", optimizer=optimizer)

    actual = train(model, through(called), optimizer)
    assert first_difference(expected, actual) is None
    check_planned(handle.report())
    handle.undo()
    assert ("_compiled_call_impl" in vars(model)) == (how == "in place")


def test_a_model_that_is_compiled_afterwards_is_planned_all_the_same():
    model = Net()
    plain = copy.deepcopy(model)
    expected = train(plain, backward_of_batch, sgd(plain))
    optimizer = sgd(model)
    handle = legroom.fit(model, activations="60%", optimizer=optimizer)
    compiled = torch.compile(model, backend="eager")

    actual = train(model, through(compiled), optimizer)
    assert first_difference(expected, actual) is None
    check_planned(handle.report())


def test_a_sequential_that_is_compiled_afterwards_is_planned_all_the_same():
    """TorchDynamo enters what is PyTorch's own class past the call that fit has set."""

    def trained(*, is_fitted):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        handle = legroom.fit(model, budget="lowest") if is_fitted else None
        compiled = torch.compile(model, backend="eager")
        optimizer = sgd(model)
        for _ in range(3):
            compiled(torch.ones(256, 64)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        if handle is not None:
            check_planned(handle.report())
            handle.undo()
            compiled(torch.ones(256, 64))
        return [param.detach() for param in model.parameters()]

    pairs = zip(trained(is_fitted=True), trained(is_fitted=False), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_a_part_and_the_whole_are_not_both_fitted():
    model = Net()
    handle = legroom.fit(model.blocks[0], activations="60%")
    with pytest.raises(UsageError, match="a part of Net is already fitted"):
        legroom.fit(model, activations="60%")
    handle.undo()
    whole = legroom.fit(model, activations="60%")
    with pytest.raises(UsageError, match="is part of Net, which is fitted"):
        legroom.fit(model.blocks[0], activations="60%")
    whole.undo()


def test_as_a_backend_of_torch_compile():
    model = Net()
    plain = copy.deepcopy(model)
    expected = train(plain, backward_of_batch, sgd(plain))
    optimizer = sgd(model)
    compiled = torch.compile(model, backend="legroom", options={"activations": "60%"})

    actual = train(model, through(compiled), optimizer)
    assert first_difference(expected, actual) is None


class Pair(nn.Module):
    """A generator and a critic of a GAN."""

    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 16)
        )
        self.critic = nn.Sequential(
            nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)
        )


def gan_step(pair, step, *, penalty):
    """Gradients of both; as in WGAN-GP, with a penalty on gradients of the critic."""
    real, _ = batch(step)
    noise, _ = batch(step + 50)
    made = pair.generator(noise)
    loss = pair.critic(made.detach()).mean() - pair.critic(real).mean()
    if penalty:
        mixed = (0.5 * real + 0.5 * made.detach()).requires_grad_()
        (slope,) = torch.autograd.grad(pair.critic(mixed).sum(), mixed, create_graph=True)
        loss = loss + 10 * (slope.norm(dim=1) - 1).square().mean()
    loss.backward()
    pair.critic.requires_grad_(False)
    (-pair.critic(made).mean()).backward()
    pair.critic.requires_grad_(True)
    return loss


def test_two_models_at_once():
    pair = Pair()
    plain = copy.deepcopy(pair)

    def gradients(trained, step):
        return gan_step(trained, step, penalty=False)

    expected = train(plain, gradients, sgd(plain), num_steps=8)
    optimizer = sgd(pair)

    def whole_step():
        gradients(pair, 0)
        optimizer.step()
        optimizer.zero_grad()

    handles = [
        legroom.fit(each, budget="90%", optimizer=optimizer, step=whole_step)
        for each in (pair.generator, pair.critic)
    ]
    actual = train(pair, gradients, optimizer, num_steps=8)  # one is measured at a time
    assert first_difference(expected, actual) is None
    for handle in handles:
        check_planned(handle.report())
        handle.undo()


def test_a_gradient_penalty_beside_a_fitted_generator():
    pair = Pair()
    plain = copy.deepcopy(pair)

    def gradients(trained, step):
        return gan_step(trained, step, penalty=True)

    expected = train(plain, gradients, sgd(plain))
    optimizer = sgd(pair)

    def whole_step():
        gradients(pair, 0)
        optimizer.step()
        optimizer.zero_grad()

    handle = legroom.fit(pair.generator, budget="97%", optimizer=optimizer, step=whole_step)
    actual = train(pair, gradients, optimizer)
    assert first_difference(expected, actual) is None
    check_planned(handle.report())
    critic = legroom.fit(pair.critic, activations="90%", optimizer=optimizer)
    expected = train(plain, gradients, sgd(plain))
    actual = train(pair, gradients, sgd(pair))
    assert first_difference(expected, actual) is None
    assert any("create_graph" in why for _, why in critic.report().not_planned)
    critic.undo()
    handle.undo()
