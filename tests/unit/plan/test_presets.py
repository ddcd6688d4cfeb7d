"""Each recipe on a step small enough to say what it keeps."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from legroom import variants, ways
from legroom.capture import Kind, capture_step
from legroom.errors import UnknownNameError
from legroom.plan import presets
from legroom.plan._problem import build_problem
from legroom.plan._search import Search
from legroom.plan._simulate import NEVER_FITS, Trace
from legroom.plan.presets._by_cost import is_expensive
from tests.unit.plan.made_up_graphs import KIB, MADE_UP, Model, chain, transformer, unet
from tests.unit.plan.random_graphs import Builder, graphs

RANDOMLY = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def search_of(graph, enabled_variants=()):
    return Search(build_problem(graph, ways.select(), enabled_variants))


def kept(search, choice):
    """Tensors that the choice holds, and that something asks for."""
    trace = Trace()
    search.simulator.run(choice, trace)
    return [
        search.problem.candidates[number].tensor
        for number in sorted(trace.needed)
        if search.is_held(choice, number)
    ]


def choices_of(name, search):
    return list(presets.get(name).choices(search))


def first_choice(name, graph):
    search = search_of(graph)
    choice = choices_of(name, search)[0]
    return search, choice, kept(search, choice)


def made_by(graph, *names):
    """Tensors of forward that operations of these names make, in order."""
    return [
        tensor
        for op in graph.operations
        if op.is_forward and any(name in op.name for name in names)
        for tensor in op.writes
    ]


@pytest.mark.parametrize("make", MADE_UP.values(), ids=list(MADE_UP))
@pytest.mark.parametrize("name", presets.names())
def test_every_preset_can_be_simulated(name, make):
    search = search_of(make(), variants.select())
    whole = search.evaluate(search.hold_all(), "hold")
    for choice in choices_of(name, search):
        outcome = search.evaluate(choice, name)
        assert outcome.added_ms >= 0
        assert outcome.peak_bytes <= 1.5 * whole.peak_bytes
        again = search.simulator.run(choice)
        assert again == outcome


@pytest.mark.parametrize("name", presets.names())
def test_presets_survive_a_step_without_pieces(name):
    for graph in (Builder().graph(), replace(chain(), operations=(), tensors=())):
        search = search_of(graph)
        for choice in choices_of(name, search):
            assert choice.options == ()


def test_save_all_keeps_what_backward_reads():
    graph = chain()
    search, choice, held = first_choice("save-all", graph)
    assert held == made_by(graph, "mm", "sin")
    assert search.evaluate(choice, "").added_ms == 0


def test_per_block_keeps_the_inputs_of_blocks():
    graph = transformer()
    search, choice, held = first_choice("per-block", graph)
    embedding = made_by(graph, "mm.default")[0]
    assert held == [embedding, *made_by(graph, "add.Tensor")]
    # Each block runs once more, but for the sum at its end, which is kept.
    again = 0.4 + 4.0 + 0.8 + 4.0 + 0.5
    assert search.evaluate(choice, "").added_ms == pytest.approx(6 * again)


def test_sqrt_keeps_what_crosses_segments_of_blocks():
    graph = transformer()
    search = search_of(graph)
    embedding = made_by(graph, "mm.default")[0]
    sums = made_by(graph, "add.Tensor")
    of_two, of_three = (kept(search, each) for each in choices_of("sqrt", search))
    assert of_two == [embedding, *sums[1::2]]  # isqrt(6) = 2 blocks in a segment
    assert of_three == [embedding, *sums[2::3]]


def test_sqrt_cuts_a_chain_into_segments():
    graph = chain(length=15)  # and the loss: 16 operations, √16 = 4 segments
    search = search_of(graph)
    first = choices_of("sqrt", search)[0]
    assert kept(search, first) == [graph.operations[position].writes[0] for position in (3, 7, 11)]


def test_residual_blocks_keep_the_sums():
    graph = transformer()
    search, choice, held = first_choice("residual-blocks", graph)
    # The embedding is made again from the batch.
    assert held == made_by(graph, "add.Tensor")
    assert search.evaluate(choice, "").added_ms > 0


def test_a_sum_with_a_bias_is_not_residual():
    model = Model()
    x = model.call("mm.default", [model.batch], 4 * KIB, saves=["out"])
    narrow = model.call("mm.default", [x], 1 * KIB, saves=["out"])
    model.call("add.Tensor", [x, narrow], 4 * KIB, saves=["out"])
    model.call("add.Tensor", [x, model.batch], 4 * KIB, saves=["out"])
    assert choices_of("residual-blocks", search_of(model.step())) == []


@pytest.mark.parametrize("make", [unet, chain])
def test_some_presets_need_a_pattern(make):
    search = search_of(make())
    for name in ("per-block", "residual-blocks", "bptt"):
        assert choices_of(name, search) == []


def rnn(num_steps):
    model = Model()
    state = model.call("mm.default", [model.batch], KIB, saves=[])
    for _ in range(num_steps):
        product = model.call("addmm.default", [state], KIB, saves=[state], time_ms=4.0)
        state = model.call("tanh.default", [product], KIB, saves=["out"], line="rnn.py:7")
    return model.step()


def test_bptt_keeps_every_third_state_of_nine():
    graph = rnn(9)
    search = search_of(graph)
    states = made_by(graph, "tanh")
    found = choices_of("bptt", search)
    assert kept(search, found[0]) == states[2:8:3]
    assert kept(search, found[1]) == states[3:8:4]
    assert choices_of("bptt", search_of(rnn(7))) == []


def test_separators_cut_where_little_crosses():
    model = Model()
    x = model.batch
    for number in range(12):
        narrow = number % 4 == 2
        x = model.call("sin.default", [x], KIB if narrow else 8 * KIB, saves=[x])
    graph = model.step()
    search = search_of(graph)
    found = choices_of("separators", search)
    assert len(found) == 2  # three cuts and five; twelve operations are too few for eight
    assert kept(search, found[0])[:2] == [graph.operations[p].writes[0] for p in (2, 6)]


def test_separators_keep_long_skips():
    graph = unet()
    search = search_of(graph)
    skips = made_by(graph, "relu")[:4]
    deepest = choices_of("separators", search)[0]
    assert set(skips[:2]) <= set(kept(search, deepest))


def test_checkmate_rounds_for_half_of_the_memory():
    search = search_of(unet())
    whole = search.evaluate(search.hold_all(), "hold").peak_bytes
    found = choices_of("checkmate", search)
    assert 1 <= len(found) <= 3
    assert search.evaluate(found[0], "").peak_bytes < whole


# -- Echo -------------------------------------------------------------------------------------


def echo_graph(wide_bytes):
    """mm -> gelu -> tanh -> mm; backward reads the last three, not the first product."""
    model = Model()
    product = model.call("mm.default", [model.batch], 10 * KIB, time_ms=4.0)
    gelu = model.call("gelu.default", [product], wide_bytes, saves=["out"])
    tanh = model.call("tanh.default", [gelu], wide_bytes, saves=["out"])
    model.call("mm.default", [tanh], KIB, saves=["out"], time_ms=4.0)
    return model.step(), product, gelu, tanh


@pytest.mark.parametrize(
    ("wide_bytes", "is_worth_it"), [(4 * KIB, False), (5 * KIB, True), (9 * KIB, True)]
)
def test_echo_releases_at_least_what_it_keeps(wide_bytes, is_worth_it):
    graph, product, gelu, tanh = echo_graph(wide_bytes)
    search, choice, held = first_choice("echo", graph)
    # The group of both activations releases 2 × wide and keeps the product's 10 KiB.
    assert set(held) >= ({product} if is_worth_it else {gelu, tanh})
    assert (gelu in held, tanh in held) == (not is_worth_it, not is_worth_it)
    assert search.evaluate(choice, "").added_ms == (2.0 if is_worth_it else 0.0)


@RANDOMLY
@given(graphs(), st.lists(st.booleans(), min_size=10, max_size=10))
def test_echo_and_min_cut_run_nothing_expensive(graph, expensive):
    graph = with_products(graph, expensive)
    search = search_of(graph)
    if any(len(tied) > 1 for tied in search.problem.tied):
        return
    for name in ("echo", "min-cut"):
        trace = Trace()
        search.simulator.run(choices_of(name, search)[0], trace)
        assert not any(is_expensive(graph.operations[again]) for again in trace.runs_again)


def test_min_cut_keeps_one_of_two_formulas_inputs():
    model = Model()
    product = model.call("mm.default", [model.batch], 10 * KIB, time_ms=4.0)
    relu = model.call("relu.default", [product], 10 * KIB)
    model.call("sum.default", [relu], 4)
    model.build.backward([model.batch, relu], 8, name="aten.threshold_backward.default")
    search = search_of(model.build.graph(), variants.select())
    assert list(search.problem.variant_names.values()) == [("", "relu-from-input")]
    choice = choices_of("min-cut", search)[0]
    trace = Trace()
    search.simulator.run(choice, trace)
    assert 0 not in trace.runs_again
    assert len(kept(search, choice)) == 1


def with_products(graph, expensive):
    """The same step with some of forward's operations expensive."""
    operations = tuple(
        replace(op, name="aten.mm.default")
        if op.is_forward and "relu" not in op.name and expensive[op.index % len(expensive)]
        else op
        for op in graph.operations
    )
    return replace(graph, operations=operations)


# -- the minimum cut --------------------------------------------------------------------------


def fewest_bytes(problem):
    """By trying every subset: bytes to hold so that cheap operations give the rest."""

    def is_given(number, held):
        if number in held:
            return True
        candidate = problem.candidates[number]
        op = problem.graph.operations[candidate.producer]
        if is_expensive(op) or not any(o.saving.runs_producer for o in candidate.options):
            return False
        return all(is_given(need, held) for need in problem.reruns[candidate.producer].needs)

    wanted = {number for alternatives in problem.needs.values() for number in alternatives[0]}
    numbers = range(len(problem.candidates))
    return min(
        sum(problem.candidates[number].num_bytes for number in held)
        for size in range(len(numbers) + 1)
        for held in itertools.combinations(numbers, size)
        if all(is_given(number, held) for number in wanted)
    )


@RANDOMLY
@given(graphs(), st.lists(st.booleans(), min_size=10, max_size=10))
def test_min_cut_keeps_the_fewest_bytes(graph, expensive):
    search = search_of(with_products(graph, expensive))
    problem = search.problem
    if any(len(tied) > 1 for tied in problem.tied):
        return
    held = kept(search, choices_of("min-cut", search)[0])
    num_bytes = sum(problem.graph.tensors[tensor].num_bytes for tensor in held)
    assert num_bytes == fewest_bytes(problem)


def test_min_cut_keeps_the_narrow_side():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (product,) = build.forward([x], 100, name="aten.mm.default")
    (wide,) = build.forward([product], 300)
    (narrow,) = build.forward([wide], 50)
    (back,) = build.forward([narrow], 300)
    (end,) = build.forward([back], 10, name="aten.mm.default")
    (gradient,) = build.backward([end, back], 5)
    build.backward([gradient, narrow, wide], 5)
    # `wide` takes the product (100); from there `narrow` and `back` come for nothing.
    _, _, held = first_choice("min-cut", build.graph())
    assert held == [product, end]


def test_unknown_presets_are_named():
    with pytest.raises(UnknownNameError, match=r"unknown preset 'per-blok'.*'per-block'\?"):
        presets.get("per-blok")


@pytest.fixture(scope="module")
def with_masks():
    """A step with dropout, captured for real: masks and numbers are kept."""
    net = nn.Sequential(
        nn.Linear(64, 64), nn.Dropout(0.1), nn.Tanh(), nn.Linear(64, 64), nn.SiLU(),
        nn.Linear(64, 64),
    )  # fmt: skip
    data = torch.randn(64, 64)
    return capture_step(lambda: net(data).square().mean().backward()).planned


@pytest.mark.parametrize(
    ("name", "forms"),
    [
        ("gist", [{"bits", "hold"}]),
        ("gist-lossy", [{"bits", "float16"}, {"bits", "float10"}, {"bits", "float8-e4m3"}]),
        ("actnn", [{"bits", "integer2"}, {"bits", "integer4"}, {"bits", "integer8"}]),
        ("fewbit", [{"hold", f"fewbit{bits}"} for bits in (4, 3, 2, 1)]),
    ],
)
def test_encodings_hold_everything_in_the_form_that_applies(with_masks, name, forms):
    enabled = ways.select(exactness=ways.Exactness.LOSSY)
    search = Search(build_problem(with_masks, enabled))
    used = [
        {
            each.options[option].way
            for each, option in zip(search.problem.candidates, choice.options, strict=True)
            if each.late_uses
        }
        for choice in choices_of(name, search)
    ]
    assert used == forms


def test_tempo_keeps_what_layers_of_elements_read(with_masks):
    search = search_of(with_masks)
    (choice,) = choices_of("tempo", search)
    dropped = {
        with_masks.operations[each.producer].name
        for number, each in enumerate(search.problem.candidates)
        if each.late_uses and not search.is_held(choice, number)
    }
    assert dropped
    assert all("silu" in name or "legroom" in name for name in dropped)
    assert search.evaluate(choice, "tempo").peak_bytes < NEVER_FITS


def test_a_form_that_is_far_less_exact_and_no_smaller_is_left_out(with_masks):
    enabled = ways.select(exactness=ways.Exactness.LOSSY)
    problem = build_problem(with_masks, enabled)
    assert not [each for one in problem.candidates for each in one.options if each.way == "sketch"]
    alone = build_problem(with_masks, ways.select(("sketch",), exactness=ways.Exactness.LOSSY))
    assert [each for one in alone.candidates for each in one.options if each.way == "sketch"]


def test_tempo_is_for_layers_of_elements():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (a,) = build.forward([x], 100)
    build.backward([a], 20)
    assert choices_of("tempo", search_of(build.graph())) == []


@pytest.mark.parametrize("name", ["gist-lossy", "actnn", "fewbit"])
def test_encodings_that_are_not_enabled_are_no_preset(with_masks, name):
    assert choices_of(name, search_of(with_masks)) == []
