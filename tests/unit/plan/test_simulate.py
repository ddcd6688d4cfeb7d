"""Rule 4: the simulator against the interpreter, and cases whose figures are worked out by hand."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from legroom import ways
from legroom.capture import Kind, Phase
from legroom.plan._problem import Choice, build_problem
from legroom.plan._simulate import NEVER_FITS, Simulator, Trace, _RangeMaximum
from tests.unit.plan.interpreter import NoChoiceError, interpret
from tests.unit.plan.random_graphs import Builder, graphs
from tests.unit.plan.test_solvers import problem_of


@st.composite
def choices(draw, problem):
    options = tuple(draw(st.integers(0, len(each.options) - 1)) for each in problem.candidates)
    variants = tuple(
        (position, draw(st.integers(0, len(problem.needs.get(position, ((),))) - 1)))
        for position in problem.variant_names
    )
    return Choice(options, variants)


@settings(max_examples=600, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
@given(graphs(max_operations=7), st.data())
def test_simulator_equals_the_interpreter(graph, data):
    problem = problem_of(graph)
    simulator = Simulator(problem)
    for _ in range(4):
        choice = data.draw(choices(problem))
        trace = Trace()
        outcome = simulator.run(choice, trace)
        try:
            told = interpret(problem, choice)
        except NoChoiceError:
            assert (outcome.peak_bytes, outcome.added_ms) == (NEVER_FITS, math.inf)
            continue
        assert outcome.peak_bytes == told.peak_bytes
        assert outcome.added_ms == pytest.approx(told.added_ms, abs=1e-9)
        assert simulator.profile(choice) == told.profile
        assert told.profile[outcome.peak_position] == told.peak_bytes
        assert trace.runs_again == told.runs_again
        assert trace.needed == told.needed


def simulate(build, **picked):
    """Predict the step with these tensors given back in these ways, all others held."""
    problem = build_problem(build.graph(), ways.select())
    wanted = {int(name[1:]): way for name, way in picked.items()}
    options = []
    for candidate in problem.candidates:
        names = [option.way for option in candidate.options]
        options.append(names.index(wanted.pop(candidate.tensor, "hold")))
    assert not wanted, f"no candidates: {wanted}"
    simulator, trace = Simulator(problem), Trace()
    choice = Choice(tuple(options))
    outcome = simulator.run(choice, trace)
    profile = simulator.profile(choice)
    told = interpret(problem, choice)
    assert (told.peak_bytes, told.added_ms) == (outcome.peak_bytes, outcome.added_ms)
    assert max(profile) == profile[outcome.peak_position] == outcome.peak_bytes
    needed = {problem.candidates[number].tensor for number in trace.needed}
    return outcome, profile, trace, needed


def chain_of_three():
    """x0 (10 bytes, given) -> t1 (100) -> t2 (200) -> t3 (300), and backward reads all three."""
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (t1,) = build.forward([x], 100, time_ms=1.0)
    (t2,) = build.forward([t1], 200, time_ms=2.0)
    (t3,) = build.forward([t2], 300, time_ms=4.0)
    (gradient,) = build.backward([t3], 30)
    (gradient,) = build.backward([gradient, t2], 20)
    build.backward([gradient, t1], 10)
    return build


def test_a_chain_holds_everything():
    outcome, profile, trace, needed = simulate(chain_of_three())
    assert profile == [110, 310, 610, 640, 360, 140]
    assert (outcome.peak_bytes, outcome.added_ms, outcome.peak_position) == (640, 0.0, 3)
    assert trace.runs_again == []
    assert needed == {1, 2, 3}


def test_a_chain_drops_its_middle():
    outcome, profile, trace, needed = simulate(chain_of_three(), t2="remake")
    # t2 is gone after op 2; before op 4 it is made again from t1 beside the gradient of 30.
    assert profile == [110, 310, 610, 440, 360, 140]
    assert (outcome.peak_bytes, outcome.added_ms, outcome.peak_position) == (610, 2.0, 2)
    assert trace.runs_again == [1]
    assert needed == {1, 2, 3}


def test_a_chain_remakes_all_from_its_input():
    outcome, profile, trace, _ = simulate(chain_of_three(), t1="remake", t2="remake", t3="remake")
    assert trace.runs_again == [0, 1, 2]
    assert [(at, op) for at, op, _ in trace.instructions] == [(3, 0), (3, 1), (3, 2)]
    assert trace.during == [110, 310, 610]
    assert profile == [110, 310, 510, 640, 360, 140]
    assert outcome.added_ms == 7.0


def test_outputs_of_one_operation_come_back_at_once():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    first, second = build.forward([x], 100, 50, time_ms=3.0)
    (y,) = build.forward([first, second], 5)
    (gradient,) = build.backward([y, first], 20)
    build.backward([gradient, second], 10)
    # `second` is held, `first` is remade: for a moment there are two of `second`.
    outcome, profile, trace, _ = simulate(build, t1="remake")
    assert (outcome.added_ms, trace.runs_again) == (3.0, [0])
    assert trace.during == [10 + 5 + 50 + 100 + 50]
    assert profile == [160, 165, 215, 90]
    # Both are remade: one run gives both, and `second` waits for its turn.
    outcome, profile, trace, _ = simulate(build, t1="remake", t2="remake")
    assert (outcome.added_ms, trace.runs_again) == (3.0, [0])
    assert profile == [160, 165, 185, 90]


def test_an_output_that_nobody_wants_passes():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    wanted, _ = build.forward([x], 100, 70)
    build.forward([wanted], 5)
    build.backward([wanted], 20)
    outcome, profile, trace, _ = simulate(build, t1="remake")
    assert trace.during == [10 + 100 + 70]
    assert profile == [180, 115, 180]
    assert outcome.added_ms == 1.0


def test_replay_holds_the_generators_state():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (mask,) = build.forward([x], 20_000, is_random=True, time_ms=2.0)
    (y,) = build.forward([mask], 50)
    (gradient,) = build.backward([y], 5)
    build.backward([gradient, mask], 5)
    outcome, profile, trace, _ = simulate(build, t1="replay")
    assert profile == [20_010, 20_060, 10 + 5056 + 50 + 5, 10 + 5 + 5056 + 20_000]
    assert (outcome.added_ms, trace.runs_again) == (2.0, [0])
    # The state is needed while the numbers are drawn, and not afterwards.
    assert trace.during == [10 + 5 + 5056 + 20_000]


def test_a_checkpoint_that_backward_does_not_read():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (checkpoint,) = build.forward([x], 40, time_ms=8.0)
    (wide,) = build.forward([checkpoint], 200, time_ms=1.0)
    (y,) = build.forward([wide], 5)
    (gradient,) = build.backward([y], 5)
    build.backward([gradient, wide], 5)
    outcome, profile, trace, needed = simulate(build, t2="remake")
    assert profile == [50, 250, 10 + 40 + 200 + 5, 10 + 40 + 5 + 5, 250 + 5]
    assert (outcome.added_ms, trace.runs_again) == (1.0, [1])
    assert needed == {1, 2, 3}
    # Where `wide` is held, nobody asks for the checkpoint, and holding it costs nothing.
    outcome, profile, trace, needed = simulate(build)
    assert profile == [50, 250, 215, 220, 220]
    assert needed == {2, 3}


def test_micro_batches_come_one_after_the_other():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    weight_gradients = []
    for _ in range(2):
        (a,) = build.forward([x], 100, node="a")
        (b,) = build.forward([a], 60, node="b")
        (gradient,) = build.backward([b], 30, node="c")
        (made,) = build.backward([gradient, a], 7, node="d", kind=Kind.GRADIENTS, planned=False)
        weight_gradients.append(made)
    build.operation("aten.add_", Phase.OPTIMIZER, weight_gradients, [], piece=-1)
    outcome, profile, trace, _ = simulate(build, t1="remake", t5="remake")
    assert profile == [110, 170, 100, 147, 117, 177, 107, 154, 24]
    assert (outcome.peak_bytes, outcome.peak_position) == (177, 5)
    assert trace.runs_again == [0, 4]
    assert outcome.added_ms == 2.0
    # One of them only: the other is held across its own backward, and no further.
    _, profile, trace, _ = simulate(build, t5="remake")
    assert profile == [110, 170, 200, 147, 117, 177, 107, 154, 24]
    assert trace.runs_again == [4]


def test_what_the_caller_holds_stays():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (hidden,) = build.forward([x], 100)
    (logits,) = build.forward([hidden], 40)
    (gradient,) = build.backward([logits, hidden], 30)
    build.backward([gradient], 5)
    build.hand_out(logits, None)
    _, profile, _, needed = simulate(build, t1="remake")
    assert profile == [110, 150, 10 + 40 + 100 + 30, 10 + 40 + 30 + 5]
    assert needed == {1}  # there is nothing to decide about the logits
    build.hand_out(logits, 2)  # the caller lets go of them
    _, profile, _, _ = simulate(build, t1="remake")
    assert profile == [110, 150, 180, 45]


def test_a_remake_reads_what_the_caller_still_holds():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (logits,) = build.forward([x], 40, time_ms=4.0)
    (wide,) = build.forward([logits], 100, time_ms=1.0)
    (y,) = build.forward([wide], 5)
    (gradient,) = build.backward([y, wide], 30)
    build.backward([gradient, logits], 5)
    build.hand_out(logits, 4)
    outcome, profile, trace, _ = simulate(build, t1="remake", t2="remake")
    assert trace.runs_again == [1]
    assert outcome.added_ms == 1.0
    assert profile == [50, 150, 155, 10 + 40 + 5 + 100 + 30, 85]


def test_workspace_makes_the_peak():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (a,) = build.forward([x], 100, workspace_bytes=500, time_ms=2.0)
    (b,) = build.forward([a], 50)
    (gradient,) = build.backward([b], 80)
    build.backward([gradient, a], 5, workspace_bytes=20)
    outcome, profile, _, _ = simulate(build)
    assert profile == [610, 160, 240, 215]
    assert (outcome.peak_bytes, outcome.peak_position) == (610, 0)
    # Run again, it takes its scratch memory again, beside what backward has alive by then.
    outcome, profile, trace, _ = simulate(build, t1="remake")
    assert trace.during == [10 + 80 + 100 + 500]
    assert (outcome.peak_bytes, outcome.peak_position) == (690, 3)


def test_a_remake_reads_less_than_forward_did():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (a,) = build.forward([x], 60)
    (statistics,) = build.forward([a], 40)
    (b,) = build.forward([a, statistics], 100, remake_reads=(a,))
    (c,) = build.forward([b], 5)
    (gradient,) = build.backward([c], 5)
    build.backward([gradient, b], 5)
    _, _, trace, needed = simulate(build, t3="remake")
    assert needed == {a, b, c}
    assert trace.runs_again == [2]


def test_a_step_without_backward_has_no_choice():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (a,) = build.forward([x], 60)
    build.forward([a], 30)
    outcome, profile, _, needed = simulate(build)
    assert profile == [70, 100]
    assert (outcome.peak_bytes, outcome.added_ms, needed) == (100, 0.0, set())


@pytest.mark.parametrize("num_values", [1, 2, 3, 7, 8, 9])
def test_range_maximum_finds_the_first_highest(num_values):
    values = tuple((7 * number) % 5 for number in range(num_values))
    highest = _RangeMaximum(values)
    for first in range(num_values):
        for end in range(first + 1, num_values + 1):
            top, where = highest.between(first, end)
            assert top == max(values[first:end]) == values[where]
            assert where == first + values[first:end].index(top)
    assert highest.between(2, 2) == (0, 2)
