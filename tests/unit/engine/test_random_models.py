"""Rule 3 on models nobody wrote by hand: whatever is decided for a tensor, training is the same.

The default run carries out choices that no solver would make, on operations whose times are
modelled; the slow one goes through `legroom.fit` at budgets between the floor and the plain step.
"""

from __future__ import annotations

import functools
import gc
import random

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import legroom
from legroom import variants, ways
from legroom.capture import FunctionShell, _heap, capture_step, own_call
from legroom.engine._step_plan import made_up_step
from legroom.engine.graph import PlannedCall, choose_executor, guard
from legroom.errors import InfeasibleBudgetError
from legroom.meter import OperationTime, PeakGauge
from legroom.meter._costs import cost_of
from legroom.meter._stopwatch import Call, measure_workspace, undisturbed
from legroom.plan import with_times
from legroom.plan._problem import Choice, Problem, build_problem
from legroom.plan._program import programs_of
from legroom.plan._search import Search
from legroom.plan._simulate import NEVER_FITS
from tests.unit.engine.random_models import Recipe, Training, build, recipes
from tests.unit.engine.training import Seen, bytes_of, state_of

NUM_STEPS = 2
NUM_CHOICES = 3
NUM_PARTS = 6
ROOM_BYTES = 16 * 2**10
_GENERATE = [Phase.generate]
"""An example takes seconds, and making it smaller would take an hour."""
_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def train(training: Training, call) -> list[Seen]:
    """What each step leaves: its loss, gradients, parameters, buffers and the random state."""
    return [train_step(training, call) for _ in range(NUM_STEPS)]


def train_step(training: Training, call) -> Seen:
    training.optimizer.zero_grad()
    output = call(training.data, training.labels)
    loss = training.loss_of(output)
    seen = {"loss": bytes_of(loss)}
    seen |= {str(place): bytes_of(each) for place, each in enumerate(pytree.tree_leaves(output))}
    del output  # the plan knows no loop that holds on to it
    loss.backward()
    del loss
    gradients = {
        f"{name}.grad": bytes_of(param.grad)
        for name, param in training.model.named_parameters()
        if param.grad is not None
    }
    training.optimizer.step()
    return seen | state_of(training.model) | gradients


def assert_same(plain: list[Seen], other: list[Seen]) -> None:
    for number, (before, after) in enumerate(zip(plain, other, strict=True), start=1):
        differs = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        assert not differs, f"step {number} differs in {differs}"


@pytest.fixture(scope="module", autouse=True)
def _see_only_what_is_new():
    """Every measurement looks at all that is alive, and a test process has a million objects."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_heap, "_all_objects", gc.get_objects)
        gc.collect()
        gc.freeze()
        yield
        gc.unfreeze()


# Any choice ---------------------------------------------------------------------------------------


class Modelled:
    """Stands for `OperationTimes`: scratch memory is measured, times are not."""

    notes: tuple[str, ...] = ()

    def measure(self, signatures, *, on_progress=None):
        return {signature: _modelled(signature) for signature in dict.fromkeys(signatures)}


@functools.cache
def _modelled(signature: str) -> OperationTime:
    cost, device = cost_of(signature), torch.device("cpu")
    try:
        with undisturbed(device):
            workspace_bytes = measure_workspace(Call.of(signature, cost, device))
    except Exception:  # an operation that needs particular values, as the stopwatch finds out too
        workspace_bytes = 0
    ms = 1e-9 * cost.flops + 1e-7 * cost.moved_bytes
    return OperationTime(ms, is_measured=False, workspace_bytes=workspace_bytes)


def random_choice(problem: Problem, rng: random.Random) -> Choice:
    """An option for each candidate, the same for those that are tied, and random variants."""
    share = rng.choice([0.2, 0.5, 0.8, 1.0])
    options = [0] * len(problem.candidates)
    for number, tied in enumerate(problem.tied):
        if tied[0] == number and rng.random() < share:
            picked = rng.randrange(len(problem.candidates[number].options))
            for each in tied:
                options[each] = picked
    picked_variants = tuple(
        (position, rng.randrange(len(names)))
        for position, names in problem.variant_names.items()
        if position in problem.needs
    )
    return Choice(tuple(options), picked_variants)


def possible_choice(search: Search, rng: random.Random) -> tuple[Choice, int]:
    """Not one that would make something from what serves its readers only."""
    while True:
        choice = random_choice(search.problem, rng)
        peak_bytes = search.simulator.run(choice).peak_bytes
        if peak_bytes < NEVER_FITS:
            return choice, peak_bytes


def fresh_start(recipe: Recipe, training: Training) -> None:
    """Weights, buffers, optimizer and random numbers as they were when it was built."""
    training.model.load_state_dict(build(recipe).model.state_dict())
    training.optimizer.state.clear()
    training.optimizer.zero_grad()


def target_of(training: Training) -> torch.nn.Module:
    """What is planned: the model, or a function that returns the loss."""
    if not training.model.recipe.is_function:
        return training.model
    return FunctionShell(training.compute_loss)


def measured_steps(training: Training, call) -> tuple[list[Seen], int]:
    """The peak is that of the second step, which has the optimizer's state."""
    first = train_step(training, call)
    training.optimizer.zero_grad()
    gc.collect()  # what the example before has left counts as held outside of the step
    gauge = PeakGauge(torch.device("cpu"))
    assert gauge.start()
    try:
        second = train_step(training, call)
    finally:
        reading = gauge.stop()
    assert reading is not None
    return [first, second], reading.peak_bytes


def check_choices(recipe: Recipe, num_choices: int) -> None:
    training = build(recipe)
    target = target_of(training)
    plain = train(training, target)
    fresh_start(recipe, training)
    step = made_up_step(target, (training.data, training.labels), {}, (training.optimizer,))
    capture = capture_step(step, models=[target])
    planned = with_times(capture, Modelled()).planned
    problem = build_problem(planned, ways.select(), variants.select())
    search, rng = Search(problem), random.Random(recipe.seed)
    for _ in range(num_choices):
        choice, predicted = possible_choice(search, rng)
        call = PlannedCall(
            own_call(target),
            capture.sources,
            programs_of(search, choice),
            executor=choose_executor("eager", "bitwise"),
            exactness="bitwise",
        )
        guard.acquire()
        try:
            fresh_start(recipe, training)
            seen, measured = measured_steps(training, call)
        finally:
            guard.release()
            torch._dynamo.reset()
        assert_same(plain, seen)
        assert not call.unplanned, call.unplanned
        assert abs(measured - predicted) <= 0.01 * predicted + ROOM_BYTES, (measured, predicted)


@settings(max_examples=8, deadline=None, derandomize=True, phases=_GENERATE,
          suppress_health_check=_QUIET)  # fmt: skip
@given(recipes())
def test_any_choice_trains_the_same(recipe):
    check_choices(recipe, NUM_CHOICES)


# Through the public function ----------------------------------------------------------------------


def check_fitted(recipe: Recipe, **budget: str | int) -> None:
    training = build(recipe)
    target = training.compute_loss if recipe.is_function else training.model
    plain = train(training, target)
    fresh_start(recipe, training)
    fitted = legroom.fit(target, optimizer=training.optimizer, **budget)
    try:
        seen = train(training, fitted if recipe.is_function else target)
        report = fitted.report()
    finally:
        fitted.undo()
        torch._dynamo.reset()
    assert_same(plain, seen)
    assert not [what for what, _ in report.not_planned if what == "a graph"], report.not_planned
    measured, predicted = report.measured_peak_bytes, report.predicted_peak_bytes
    assert measured <= report.budget_bytes
    assert abs(measured - predicted) <= 0.01 * predicted + ROOM_BYTES, (measured, predicted)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_fitted_models_train_the_same(part):
    @seed(part)
    @settings(
        max_examples=300 // NUM_PARTS,
        deadline=None,
        database=None,
        phases=_GENERATE,
        suppress_health_check=_QUIET,
    )
    @given(recipes(), st.integers(1, 99))
    def check(recipe, share):
        enough_bytes = None
        try:
            check_fitted(recipe, activations=f"{share}%")
        except InfeasibleBudgetError as error:
            enough_bytes = error.enough_bytes
        if enough_bytes is not None:  # here, since the error keeps its model alive
            check_fitted(recipe, budget=enough_bytes)

    check()
