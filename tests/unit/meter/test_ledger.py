"""The books on made-up event streams, where everything is known."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from legroom.capture import Kind
from legroom.meter._events import AllocatorEvent, EventStream, Operation, TensorRef
from legroom.meter._ledger import build_ledger
from legroom.meter._opening import OpeningBalance, OpeningStorage
from legroom.meter._recorder import Recording, Sighting
from legroom.meter._scopes import Tag
from legroom.meter._timeline import alive_after, balances, thin_out


class Script:
    """Writes an event stream line by line; every call takes ten nanoseconds."""

    def __init__(self):
        self.stream = EventStream()
        self.now = 0
        self.open = []
        self.total = 0

    def begin(self, name, *, tag=None, number=0, inputs=(), sequence=-1, node=""):
        self.now += 10
        parent = self.open[-1].index if self.open else -1
        op = Operation(
            index=len(self.stream.operations), name=name, start_ns=self.now, end_ns=10**9,
            parent=parent, thread=1, sequence=sequence, node=node, tag=tag, number=number,
            inputs=tuple(TensorRef(a, (1,), "uint8", 1) for a in inputs),
        )  # fmt: skip
        self.stream.operations.append(op)
        self.open.append(op)

    def end(self):
        self.now += 10
        self.open.pop().end_ns = self.now

    def mark(self, tag, number=0):
        self.begin("mark", tag=tag, number=number)
        self.end()

    def change(self, address, delta):
        self.now += 10
        self.total += delta
        inside = self.open[-1].index if self.open else -1
        self.stream.allocations.append(
            AllocatorEvent(
                self.now, address, delta, self.total, inside, len(self.stream.operations)
            )
        )

    def ledger(self, opening=(), snapshots=()):
        return build_ledger(
            Recording(
                device=torch.device("cpu"), stream=self.stream, sites=(),
                opening=OpeningBalance(tuple(opening)), snapshots=tuple(snapshots),
                parameters={}, module_classes={}, opaque_nodes=frozenset(), has_lines=True,
            )
        )  # fmt: skip


def kinds_of(ledger):
    return [block.kind for block in ledger.blocks]


def opening(address, size, kind=Kind.WEIGHTS):
    return OpeningStorage(address, size, kind, (size,), "uint8")


def test_memory_inside_one_operator_is_workspace():
    script = Script()
    script.mark(Tag.BOUNDARY)
    script.begin("root", tag=Tag.ROOT)
    script.begin("aten::conv2d")
    script.change(1, 100)
    script.begin("aten::empty")
    script.change(2, 50)
    script.end()
    script.change(2, -50)
    script.end()
    script.end()
    assert kinds_of(script.ledger()) == [Kind.TEMPORARIES_FORWARD, Kind.WORKSPACE]


def test_memory_outside_every_operation_is_untracked():
    script = Script()
    script.mark(Tag.BOUNDARY)
    script.change(1, 100)
    assert kinds_of(script.ledger()) == [Kind.UNTRACKED]


def test_what_a_graph_keeps_is_stash_unless_it_is_data():
    script = Script()
    script.mark(Tag.BOUNDARY)
    script.begin("aten::randn")
    script.change(1, 10)
    script.end()
    script.begin("root", tag=Tag.ROOT)
    script.begin("aten::mm", inputs=(1,))
    script.change(2, 20)
    script.end()
    script.end()
    script.mark(Tag.SNAPSHOT, 0)
    script.begin("backward", tag=Tag.BACKWARD)
    script.end()
    seen = [Sighting(a, Kind.STASH, (1,), "uint8", node="MmBackward0") for a in (1, 2)]
    ledger = script.ledger(snapshots=[tuple(seen)])
    assert kinds_of(ledger) == [Kind.INPUTS, Kind.STASH]
    assert [keeper.node for block in ledger.blocks for keeper in block.keepers] == [
        "MmBackward0"
    ] * 2


def test_what_backward_reads_is_stash_whoever_holds_it():
    script = Script()
    script.mark(Tag.BOUNDARY)
    script.begin("root", tag=Tag.ROOT)
    script.begin("aten::mm")
    script.change(1, 10)
    script.change(2, 20)
    script.end()
    script.end()
    script.begin("backward", tag=Tag.BACKWARD)
    script.begin("aten::mm", inputs=(1,))
    script.end()
    script.end()
    assert kinds_of(script.ledger()) == [Kind.STASH, Kind.TEMPORARIES_FORWARD]


def test_a_gradient_is_a_gradient_from_birth():
    script = Script()
    script.mark(Tag.BOUNDARY)
    script.begin("backward", tag=Tag.BACKWARD)
    script.begin("aten::mm")
    script.change(1, 10)
    script.end()
    script.begin("torch::autograd::AccumulateGrad", inputs=(1,))
    script.begin("aten::detach", inputs=(1,))
    script.end()
    script.end()
    script.end()
    assert kinds_of(script.ledger()) == [Kind.GRADIENTS]


def test_a_weight_that_a_graph_keeps_stays_a_weight():
    script = Script()
    script.mark(Tag.BOUNDARY)
    script.mark(Tag.SNAPSHOT, 0)
    seen = Sighting(7, Kind.STASH, (1,), "uint8", node="MmBackward0", field="mat2")
    assert kinds_of(script.ledger([opening(7, 64)], [(seen,)])) == [Kind.WEIGHTS]


def test_an_opening_storage_dies_when_its_finalizer_says_so():
    script = Script()
    script.mark(Tag.BOUNDARY)
    script.mark(Tag.FREED, 7)
    script.begin("aten::mm")
    script.change(7, 30)
    script.end()
    ledger = script.ledger([opening(7, 64)])
    assert [m.total_bytes for m in balances(ledger, 0, 10**6)] == [64, 0, 30]
    assert ledger.unmatched_bytes == 0


def test_a_reused_address_means_that_the_old_block_is_gone():
    script = Script()
    script.mark(Tag.BOUNDARY)
    script.change(1, 100)
    script.change(1, 40)
    ledger = script.ledger()
    assert [m.total_bytes for m in balances(ledger, 0, 10**6)] == [0, 100, 0, 40]


def test_a_release_of_something_unseen_is_reported():
    script = Script()
    script.mark(Tag.BOUNDARY)
    script.change(99, -40)
    assert script.ledger().unmatched_bytes == 40


def test_a_release_before_the_opening_balance_concerns_nobody():
    script = Script()
    script.change(99, -40)
    script.mark(Tag.BOUNDARY)
    assert script.ledger().unmatched_bytes == 0


@st.composite
def histories(draw):
    """Allocations and releases in random operations and phases, over an opening balance."""
    script = Script()
    start = [opening(1000 + i, draw(st.integers(1, 500))) for i in range(draw(st.integers(0, 4)))]
    script.mark(Tag.BOUNDARY)
    live, snapshots = [], []
    for address in range(1, draw(st.integers(1, 30))):
        tag = draw(st.sampled_from([None, Tag.ROOT, Tag.BACKWARD, Tag.OPTIMIZER]))
        if tag is not None:
            script.begin("scope", tag=tag)
        if draw(st.booleans()):
            script.begin(draw(st.sampled_from(["aten::mm", "aten::empty", "Compiled"])))
        script.change(address, draw(st.integers(1, 1000)))
        size = script.stream.allocations[-1].delta_bytes
        live.append((address, size))
        if draw(st.booleans()):
            gone = live.pop(draw(st.integers(0, len(live) - 1)))
            script.change(gone[0], -gone[1])
        while script.open:
            script.end()
        if live and draw(st.booleans()):
            kind = draw(st.sampled_from([Kind.STASH, Kind.GRADIENTS, Kind.OPTIMIZER_STATE]))
            snapshots.append((Sighting(live[0][0], kind, (1,), "uint8", node="N"),))
            script.mark(Tag.SNAPSHOT, len(snapshots) - 1)
    script.mark(Tag.BOUNDARY)
    return script, start, snapshots


@given(histories())
def test_the_rows_add_up_to_the_allocators_count_at_every_moment(history):
    script, start, snapshots = history
    ledger = script.ledger(start, snapshots)
    opened = sum(storage.num_bytes for storage in start)
    moments = balances(ledger, 0, 10**9)
    assert [m.total_bytes - opened for m in moments[1:]] == [
        event.total_bytes for event in script.stream.allocations
    ]
    for moment in moments:
        assert sum(moment.by_kind) == moment.total_bytes
        alive = alive_after(ledger, moment.change)
        assert sum(ledger.blocks[i].num_bytes for i in alive) == moment.total_bytes


@given(histories(), st.integers(2, 20))
def test_thinning_out_keeps_the_first_and_the_highest(history, limit):
    script, start, snapshots = history
    moments = balances(script.ledger(start, snapshots), 0, 10**9)
    kept = thin_out(moments, limit)
    assert kept[0] == moments[0]
    assert kept[-1] == moments[-1]
    assert max(m.total_bytes for m in kept) == max(m.total_bytes for m in moments)
    assert len(kept) <= max(limit, 2) + 2
    assert [m.change for m in kept] == sorted({m.change for m in kept})
