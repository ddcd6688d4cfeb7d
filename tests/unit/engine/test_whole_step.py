"""What loops do around planned calls: in the plan, under one budget, before the second step."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import legroom
from legroom.capture import ObservedStep
from legroom.engine import Fitted
from legroom.engine._watch import StepWatch
from legroom.engine._whole_step import Training
from legroom.engine.graph import Eager, choose_executor
from legroom.errors import InfeasibleBudgetError
from legroom.plan import PlanOptions
from tests.unit.engine.training import Block, bytes_of, first_difference, state_of

NUM_STEPS = 5


class Classifier(nn.Module):
    """Blocks and wide logits; the loss is the loop's."""

    def __init__(self, width=16, num_blocks=3, num_classes=64):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, 0.0) for _ in range(num_blocks))
        self.head = nn.Linear(width, num_classes)

    def forward(self, value):
        for block in self.blocks:
            value = block(value)
        return self.head(value)


def rows(seed, count=512, width=16):
    numbers = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=numbers)


def classes(seed, count=512, num_classes=64):
    numbers = torch.Generator().manual_seed(seed)
    return torch.randint(0, num_classes, (count,), generator=numbers)


def accumulating(num_micro):
    def step(model, optimizer, number):
        for micro in range(num_micro):
            seed = 10 * number + micro
            output = model(rows(seed))
            (F.cross_entropy(output, classes(seed)) / num_micro).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def late_zero_grad(model, optimizer, number):
    output = model(rows(number))
    loss = F.cross_entropy(output, classes(number)) + output.log_softmax(-1).exp().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class ClipsAndAverages:
    """Clipping by norm, norms that are logged, and an average of the weights from step 0 on."""

    def __init__(self):
        self.average = None
        self.log = []

    def __call__(self, model, optimizer, number):
        F.cross_entropy(model(rows(number)), classes(number)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        self.log.append([param.grad.norm() for param in model.parameters()])
        optimizer.step()
        if self.average is None:
            self.average = copy.deepcopy(model)
        with torch.no_grad():
            for mine, theirs in zip(self.average.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)
        optimizer.zero_grad()


def smaller_last_batch(model, optimizer, number):
    count = 100 if number % 3 == 2 else 512
    F.cross_entropy(model(rows(number, count)), classes(number, count)).backward()
    optimizer.step()
    optimizer.zero_grad()


LOOPS = {
    "accumulating": lambda: accumulating(4),
    "late zero_grad": lambda: late_zero_grad,
    "clipping": ClipsAndAverages,
    "smaller last batch": lambda: smaller_last_batch,
}


@pytest.fixture
def readings(monkeypatch):
    """The peak of every measured step."""
    seen, on_step = [], Training.on_step

    def noting(training, reading):
        seen.append(reading.peak_bytes)
        on_step(training, reading)

    monkeypatch.setattr(Training, "on_step", noting)
    return seen


def make():
    torch.manual_seed(0)
    model = Classifier()
    return model, torch.optim.Adam(model.parameters())


def trained_plain(loop, num_steps=NUM_STEPS):
    model, optimizer = make()
    states = []
    for number in range(num_steps):
        loop(model, optimizer, number)
        states.append(state_of(model))
    return states


def check_fitted(loop, expected, **options):
    """Train fitted, every step as plain; the handle, undone."""
    model, optimizer = make()
    handle = legroom.fit(model, optimizer=optimizer, time_limit_s=2.0, **options)
    budgets = []
    try:
        for number, state in enumerate(expected):
            loop(model, optimizer, number)
            assert first_difference(state, state_of(model)) in (None, "random state")
            budgets.append(handle.report().budget_bytes)
    finally:
        handle.undo()
    return handle, budgets


def least_budget(loop):
    """The budget that errors name, from one that nothing fits."""
    budget = 100_000
    for _ in range(4):
        model, optimizer = make()
        handle = legroom.fit(model, budget=budget, optimizer=optimizer, time_limit_s=2.0)
        try:
            for number in range(3):
                loop(model, optimizer, number)
        except InfeasibleBudgetError as error:
            budget = error.enough_bytes
        else:
            return budget
        finally:
            handle.undo()
    raise AssertionError("what is named does not work")


@pytest.mark.parametrize("name", LOOPS)
def test_the_lowest_budget_that_is_named_is_kept(name, readings):
    expected = trained_plain(LOOPS[name]())
    budget = least_budget(LOOPS[name]())
    readings.clear()
    handle, _ = check_fitted(LOOPS[name](), expected, budget=budget)
    report = handle.report()
    assert all(peak_bytes <= budget for peak_bytes in readings[1:])
    assert report.measured_peak_bytes == pytest.approx(report.predicted_peak_bytes, rel=0.005)
    assert report.measured_peak_bytes < 0.9 * report.plain_peak_bytes
    assert report.replans == 0


@pytest.mark.parametrize("name", LOOPS)
def test_a_share_becomes_bytes_once(name, readings):
    expected = trained_plain(LOOPS[name]())
    handle, budgets = check_fitted(LOOPS[name](), expected, budget="80%")
    report = handle.report()
    assert len({*budgets}) == 1
    assert report.budget_bytes == pytest.approx(0.8 * report.plain_peak_bytes, rel=0.05)
    assert report.measured_peak_bytes <= report.budget_bytes
    assert report.measured_peak_bytes == pytest.approx(report.predicted_peak_bytes, rel=0.005)
    assert all(peak_bytes <= report.budget_bytes for peak_bytes in readings[1:])


def test_a_share_that_no_plan_keeps_ends_nothing():
    expected = trained_plain(accumulating(2))
    model, optimizer = make()
    handle = legroom.fit(model, optimizer=optimizer, budget="20%", time_limit_s=2.0)
    said = []
    handle._on_event = said.append
    for number in range(NUM_STEPS):
        accumulating(2)(model, optimizer, number)
        assert first_difference(expected[number], state_of(model)) in (None, "random state")
    handle.undo()
    (text,) = said
    assert "no plan keeps 20 % of the peak" in text
    assert "the lowest is" in text
    report = handle.report()
    assert report.measured_peak_bytes <= report.budget_bytes


def plain_peak_bytes(loop):
    gc.collect()  # what other tests have left counts as held outside of the step
    model, optimizer = make()
    loop(model, optimizer, 0)
    return legroom.profile(lambda: loop(model, optimizer, 1)).peak_bytes


def test_a_share_is_of_what_is_measured_plain():
    measured_bytes = plain_peak_bytes(late_zero_grad)
    handle, _ = check_fitted(late_zero_grad, trained_plain(late_zero_grad), budget="80%")
    assert handle.report().plain_peak_bytes == pytest.approx(measured_bytes, rel=0.005)


class Normalised(nn.Module):
    """Makes its weight anew in each call and keeps it, as `nn.utils.weight_norm` does."""

    def __init__(self, width=16):
        super().__init__()
        self.direction = nn.Parameter(torch.randn(width, width))
        self.length = nn.Parameter(torch.ones(width, 1))

    def forward(self, value):
        norm = self.direction.norm(dim=1, keepdim=True)
        self.weight = self.length * self.direction / norm
        return value + F.dropout(F.relu(F.linear(value, self.weight)), 0.2)


def make_normalised():
    torch.manual_seed(0)
    model = nn.Sequential(*(Normalised() for _ in range(4)), nn.Linear(16, 64))
    return model, torch.optim.Adam(model.parameters())


def trained(model, optimizer):
    torch.manual_seed(1)
    for number in range(NUM_STEPS):
        late_zero_grad(model, optimizer, number)
    return b"".join(bytes_of(param) for param in model.parameters())


def test_what_modules_keep_until_their_next_call_is_read_by_backward():
    plain = trained(*make_normalised())
    model, optimizer = make_normalised()
    handle = legroom.fit(model, activations="50%", optimizer=optimizer)
    assert trained(model, optimizer) == plain
    assert not handle.left_plain
    assert handle.report().predicted_peak_bytes < handle.report().plain_peak_bytes


def test_a_plan_that_cannot_be_compiled_leaves_the_call_as_it_is(monkeypatch):
    plain = trained(*make_normalised())
    model, optimizer = make_normalised()
    handle = legroom.fit(model, activations="50%", optimizer=optimizer)
    real, num_compiled = Eager.compile, []

    def compile_once(executor, graph, inputs):
        num_compiled.append(graph)
        if len(num_compiled) > 2:  # forward and backward of the first step's plan
            raise ValueError("no more")
        return real(executor, graph, inputs)

    monkeypatch.setattr(Eager, "compile", compile_once)
    assert trained(model, optimizer) == plain
    assert len(num_compiled) == 3
    assert [why for _, why in handle.left_plain] == ["ValueError: no more"]


def test_a_fitted_model_that_is_dropped_is_gone():
    def train_and_drop():
        model, optimizer = make()
        handle = legroom.fit(model, budget="lowest", optimizer=optimizer)
        for number in range(3):
            late_zero_grad(model, optimizer, number)
        assert handle.plan.decisions
        return weakref.ref(model)

    gone = train_and_drop()
    gc.collect()
    assert gone() is None


def test_planning_leaves_nothing_on_parameters():
    model, optimizer = make()
    legroom.fit(model, budget="lowest", optimizer=optimizer)
    for number in range(3):
        late_zero_grad(model, optimizer, number)
    assert not [name for param in model.parameters() for name in vars(param)]


# Several models -----------------------------------------------------------------------------------


def net(inputs, outputs, width=32):
    layers = [nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, width), nn.GELU(), nn.Linear(width, outputs))


class Pair:
    """Two models with an optimizer each, and the loop that trains both."""

    def __init__(self, inputs=(8, 16), outputs=(16, 1)):
        torch.manual_seed(0)
        self.models = tuple(net(*each) for each in zip(inputs, outputs, strict=True))
        self.optimizers = tuple(torch.optim.Adam(each.parameters()) for each in self.models)

    def state(self):
        return b"".join(bytes_of(param) for each in self.models for param in each.parameters())


def adversarial(pair, number, num_rounds=1):
    (generator, critic), (of_generator, of_critic) = pair.models, pair.optimizers
    for turn in range(num_rounds):
        of_critic.zero_grad()
        fake = generator(rows(100 * number + turn, 256, 8))
        loss = F.softplus(-critic(rows(number, 256))).mean()
        (loss + F.softplus(critic(fake.detach())).mean()).backward()
        of_critic.step()
    of_generator.zero_grad()
    F.softplus(-critic(generator(rows(number + 50, 256, 8)))).mean().backward()
    of_generator.step()


def five_to_one(pair, number):
    adversarial(pair, number, num_rounds=5)


def actor_and_critic(pair, number):
    (actor, critic), optimizers = pair.models, pair.optimizers
    seen = rows(number, 256)
    advantage = rows(number + 9, 256, 1).squeeze(-1) - critic(seen).squeeze(-1)
    chosen = F.log_softmax(actor(seen), -1)[:, 0]
    (advantage.pow(2).mean() - (chosen * advantage.detach()).mean()).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def taught(pair, number):
    (student, teacher), (optimizer, _) = pair.models, pair.optimizers
    seen = rows(number, 256)
    with torch.no_grad():
        wanted = teacher(seen)
    F.mse_loss(student(seen)[:, :1], wanted).backward()
    optimizer.step()
    optimizer.zero_grad()


def penalised(pair, number):
    (generator, critic), (of_generator, of_critic) = pair.models, pair.optimizers
    of_critic.zero_grad()
    real, fake = rows(number, 256), generator(rows(number + 50, 256, 8)).detach()
    between = (0.3 * real + 0.7 * fake).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    penalty = (slope.norm(dim=1) - 1).pow(2).mean()
    (critic(fake).mean() - critic(real).mean() + 10 * penalty).backward()
    of_critic.step()
    of_generator.zero_grad()
    (-critic(generator(rows(number + 70, 256, 8))).mean()).backward()
    of_generator.step()


PAIRS = {
    "adversarial": (adversarial, {}),
    "five to one": (five_to_one, {}),
    "actor and critic": (actor_and_critic, {"inputs": (16, 16), "outputs": (4, 1)}),
    "taught": (taught, {"inputs": (16, 16), "outputs": (4, 1)}),
    "penalised": (penalised, {}),
}


class FittedPair(Pair):
    """Both models under one budget, with one watch, as `legroom run` has them."""

    def __init__(self, options, ends_step, **sizes):
        super().__init__(**sizes)
        self.watch = StepWatch(torch.device("cpu"))
        self.training = Training(options, defers=True)
        self.training.watch(self.watch)
        executor = choose_executor("eager", "bitwise")
        self.handles = [
            Fitted(
                model,
                options,
                executor,
                optimizers=(optimizer,),
                watch=self.watch,
                training=self.training,
                label=label,
            )
            for model, optimizer, label in zip(
                self.models, self.optimizers, ("first", "second"), strict=True
            )
        ]
        for handle in self.handles:
            handle.install()
        last = self.optimizers[ends_step]
        last.register_step_post_hook(lambda *rest: self.watch.step_ends())

    def undo(self):
        self.watch.close()
        for handle in self.handles:
            handle.undo()


def plain_states(name, num_steps):
    loop, sizes = PAIRS[name]
    plain, states = Pair(**sizes), []
    for number in range(num_steps):
        loop(plain, number)
        states.append(plain.state())
    return states


def train_pair(name, budget, num_steps=9):
    expected = plain_states(name, num_steps)
    loop, sizes = PAIRS[name]
    ends_step = {"actor and critic": 1}.get(name, 0)
    options = PlanOptions(budget=str(budget), time_limit_s=2.0)
    fitted = FittedPair(options, ends_step, **sizes)
    try:
        for number in range(num_steps):
            loop(fitted, number)
            assert fitted.state() == expected[number]
    finally:
        fitted.undo()
    return [each.report() for each in fitted.handles if each.plan is not None]


def least_of_pair(name):
    """The budget that the error names; nothing that it holds stays behind."""
    try:
        train_pair(name, "100KB")
    except InfeasibleBudgetError as error:
        return error.enough_bytes
    raise AssertionError("nothing fits so little")


OFF_BY_ONE_TENSOR = pytest.mark.xfail(
    strict=False, reason="at its lowest, one activation more is alive than the plan predicts"
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("adversarial", marks=OFF_BY_ONE_TENSOR),
        *(n for n in PAIRS if n != "adversarial"),
    ],
)
def test_models_share_one_budget(name, readings):
    budget = least_of_pair(name)
    readings.clear()
    for report in train_pair(name, f"{budget}B"):
        assert report.budget_bytes == budget
        assert report.measured_peak_bytes <= budget
        assert report.measured_peak_bytes == pytest.approx(report.predicted_peak_bytes, rel=0.005)
    assert all(peak_bytes <= budget for peak_bytes in readings[1:])


def test_what_was_observed_is_data():
    """It survives a way through JSON."""
    seen, on_step = [], Training.on_step

    def noting(training, reading):
        seen.append(reading.observed)
        on_step(training, reading)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "on_step", noting)
        check_fitted(late_zero_grad, trained_plain(late_zero_grad, 2), budget="80%")
    assert seen
    for step in seen:
        assert ObservedStep.from_json(step.to_json()) == step
