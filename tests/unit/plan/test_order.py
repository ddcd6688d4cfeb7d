"""Another order of backward: the same operations, nothing before what it needs, less alive."""

import itertools

from hypothesis import HealthCheck, given, settings

from legroom import variants, ways
from legroom.capture import Kind, Phase
from legroom.plan._order import reordered
from legroom.plan._planner import Planner
from legroom.plan._problem import build_problem
from legroom.plan._search import Search
from tests.unit.plan.made_up_graphs import Model, as_recorded, transformer
from tests.unit.plan.random_graphs import Builder, graphs


def peak_of(graph):
    search = Search(build_problem(graph, ways.select()))
    return search.evaluate(search.hold_all(), "hold").peak_bytes


def two_branches(width=1000):
    """Backward makes both wide gradients before it uses either; one after the other is leaner."""
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (a,) = build.forward([x], 50)
    (b,) = build.forward([a], 50)
    (gradient,) = build.backward([b], 20)
    (wide_a,) = build.backward([gradient, a], width)
    (wide_b,) = build.backward([gradient, b], width)
    (end_a,) = build.backward([wide_a], 5)
    (end_b,) = build.backward([wide_b], 5)
    build.backward([end_a, end_b], 5)
    return build


def identity(op):
    return (op.name, op.phase, op.reads, op.writes, op.updates, op.time_ms, op.node)


def check_same_step(before, after):
    assert sorted(map(repr, map(identity, before.operations))) == sorted(
        map(repr, map(identity, after.operations))
    )
    assert [op.index for op in after.operations] == list(range(len(after.operations)))
    for tensor in after.tensors:
        same = before.tensors[tensor.index]
        assert (tensor.name, tensor.num_bytes, tensor.is_planned) == (
            same.name, same.num_bytes, same.is_planned
        )  # fmt: skip
    made = {tensor.index for tensor in after.tensors if tensor.producer < 0}
    for op in after.operations:
        assert set(op.reads) <= made
        made.update(op.writes)
        assert all(after.tensors[tensor].producer == op.index for tensor in op.writes)
    # Outside backward everything keeps its place.
    for old, new in zip(before.operations, after.operations, strict=True):
        if Phase.BACKWARD not in (old.phase, new.phase) or old.piece < 0:
            assert identity(old) == identity(new)


def check_updates(before, after):
    """Whoever reads or writes a tensor that is updated keeps its place among the others."""
    updated = {tensor for op in before.operations for tensor in op.updates}
    for tensor in updated:
        writes = [
            [identity(op) for op in graph.operations if tensor in op.updates]
            for graph in (before, after)
        ]
        assert writes[0] == writes[1]


def test_one_branch_after_the_other_is_leaner():
    before = two_branches().graph()
    after = reordered(before)
    check_same_step(before, after)
    assert peak_of(before) == 10 + 20 + 50 + 1000 + 1000
    assert peak_of(after) == 10 + 20 + 50 + 50 + 1000


def test_nothing_to_change_gives_none():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (a,) = build.forward([x], 50)
    (gradient,) = build.backward([a], 20)
    build.backward([gradient, a], 5)
    assert reordered(build.graph()) is None
    assert reordered(Builder().graph()) is None


def test_a_recording_is_not_reordered():
    assert reordered(as_recorded(two_branches().graph())) is None


def test_forward_and_random_operations_keep_their_order():
    before = transformer()
    after = reordered(before)
    if after is not None:
        check_same_step(before, after)
    model = Model()
    wide = [
        model.call("bernoulli.p", [model.batch], 5000 + number, is_random=True)
        for number in range(3)
    ]
    for tensor in reversed(wide):
        model.call("sin.default", [tensor], 10, saves=["out"])
    graph = model.step()
    other = reordered(graph) or graph
    forward = [op.name for op in other.operations if op.is_forward]
    assert forward == [op.name for op in graph.operations if op.is_forward]
    randoms = [op.index for op in other.operations if op.is_random]
    assert randoms == [0, 1, 2]


def test_updates_keep_their_order():
    build = two_branches()
    buffer = build.tensor(8, kind=Kind.WEIGHTS)
    for number in range(3):  # the later ones would release more
        build.backward([number + 1], 1, updates=(buffer,), node=f"write{number}")
        build.backward([buffer], 40 - 10 * number, node=f"read{number}")
    before = build.graph()
    after = reordered(before)
    check_same_step(before, after)
    check_updates(before, after)
    order = [op.node for op in after.operations if op.node]
    assert order.index("write0") < order.index("write1") < order.index("write2")
    assert order.index("read0") < order.index("write1")
    assert order.index("write1") < order.index("read1") < order.index("write2")


def test_recorded_lives_cover_moved_uses():
    build = two_branches()
    b, wide_b = 2, 5
    build.hand_out(b, 4)  # the caller lets go of it after `wide_b` was made
    before = build.graph()
    after = reordered(before)
    assert after.tensors[wide_b].producer == 5
    assert after.tensors[b].released_after == 5


def test_pieces_are_not_mixed():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (a,) = build.forward([x], 50)
    for piece in (1, 0):
        (gradient,) = build.backward([a], 20, piece=piece)
        wide = [build.backward([gradient], 500, piece=piece)[0] for _ in range(2)]
        ends = [build.backward([each], 5, piece=piece)[0] for each in wide]
        build.backward(ends, 5, piece=piece)
    before = build.graph()
    after = reordered(before)
    check_same_step(before, after)
    pieces = [op.piece for op in after.operations if op.phase is Phase.BACKWARD]
    assert [piece for piece, _ in itertools.groupby(pieces)] == [1, 0]


@settings(max_examples=300, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
@given(graphs(max_operations=7))
def test_any_step_stays_the_same_step(graph):
    after = reordered(graph)
    if after is None:
        return
    check_same_step(graph, after)
    check_updates(graph, after)
    for tensor in after.tensors:  # what lives as recorded is made and read while it lives
        if tensor.is_planned or tensor.released_after is None:
            continue
        uses = [op.index for op in after.operations if tensor.index in (*op.reads, *op.writes)]
        assert all(use <= tensor.released_after for use in uses)


def test_the_planner_takes_the_leaner_order():
    graph = two_branches(width=100_000).graph()
    planner = Planner(as_recorded(graph), graph, ways=ways.select(), variants=variants.select())
    leaner = peak_of(reordered(graph))
    assert planner.floor_bytes <= leaner
    plan = planner.plan(leaner)
    assert plan.order == "memory"
    assert (plan.added_ms, plan.bound_ms) == (0.0, 0.0)
    assert plan.predicted_peak_bytes <= leaner < planner.plain.peak_bytes
    assert planner.plan(planner.plain.peak_bytes).added_ms == 0
