"""Small random training steps for Hypothesis: branches, shared tensors, views' absence, many ways.

`graphs()` draws a forward DAG with its backward: several outputs per operation, skip connections,
random operations, tensors that only remakes would read, ReLUs with two formulas, operations
outside the piece, outputs that the caller keeps for a while or for good, buffers that are updated,
fewer reads in a remake, weights' gradients that stay, an optimizer, and one or two micro-batches.
"""

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from legroom.capture import Graph, Kind, OperationInfo, Phase, TensorInfo


class Builder:
    """Adds tensors and operations in order."""

    def __init__(self):
        self.tensors, self.operations, self.blocks = [], [], ()

    def tensor(self, num_bytes, *, producer=-1, kind=Kind.STASH, planned=True, released=None):
        index = len(self.tensors)
        self.tensors.append(
            TensorInfo(
                index, f"t{index}", num_bytes, kind, producer=producer,
                is_planned=planned and producer >= 0, released_after=released,
            )
        )  # fmt: skip
        return index

    def operation(
        self, name, phase, reads, sizes, *, time_ms=1.0, kind=Kind.STASH, planned=True, **extra
    ):
        index = len(self.operations)
        writes = tuple(
            self.tensor(size, producer=index, kind=kind, planned=planned) for size in sizes
        )
        self.operations.append(
            OperationInfo(
                index, name, phase, tuple(dict.fromkeys(reads)), writes,
                time_ms=time_ms, **{"piece": 0, **extra},
            )
        )  # fmt: skip
        return writes

    def forward(self, reads, *sizes, name="aten.sin.default", **extra):
        return self.operation(name, Phase.FORWARD, reads, sizes, **extra)

    def backward(self, reads, *sizes, name="aten.backward.default", **extra):
        kind = extra.pop("kind", Kind.TEMPORARIES_BACKWARD)
        return self.operation(name, Phase.BACKWARD, reads, sizes, kind=kind, **extra)

    def hand_out(self, tensor, released):
        """Not the plan's to decide on: alive until after that operation, or for good (None)."""
        self.tensors[tensor] = replace(
            self.tensors[tensor], is_planned=False, released_after=released
        )

    def last_use(self, tensor):
        uses = [
            op.index for op in self.operations if tensor in (*op.reads, *op.writes, *op.updates)
        ]
        return max(uses, default=0)

    def graph(self):
        return Graph(tuple(self.tensors), tuple(self.operations), blocks=self.blocks, num_pieces=1)


@dataclass
class Call:
    """One operation of forward, as drawn: every micro-batch runs it."""

    sources: list
    sizes: list
    name: str
    extra: dict
    has_buffer: bool
    updates_buffer: bool
    is_handed_out: bool
    late_reads: list
    reads_weight: bool
    gradient_bytes: int
    weight_gradient: bool

    @property
    def is_outside(self):
        return self.extra["piece"] < 0


SIZES = st.integers(1, 60).map(lambda size: 61 - size)  # the larger, the simpler


@st.composite
def graphs(draw, max_operations=5, is_chain=False):
    """A step with at most `max_operations` in forward; sizes and times are small whole numbers."""
    build = Builder()
    num_batches = 2 if draw(st.integers(0, 5)) == 5 else 1
    at_most = max_operations if num_batches == 1 else max(1, max_operations // 2)
    calls, num_values = [], 1
    for number in range(draw(st.integers(min(2, at_most), at_most))):
        calls.append(draw(_calls(number, num_values, is_chain)))
        num_values += len(calls[-1].sizes)
    weight = build.tensor(draw(SIZES), kind=Kind.WEIGHTS)
    buffer = build.tensor(draw(SIZES), kind=Kind.WEIGHTS)
    gradients, recorded = [], []
    for _ in range(num_batches):
        forward = _add_forward(build, calls, buffer)
        recorded += _recorded(calls, forward)
        gradients += _add_backward(build, calls, forward, weight)
    if draw(st.integers(0, 3)) == 3:
        _add_optimizer(draw, build, weight, gradients)
    last = len(build.operations) - 1
    for tensor in recorded:
        first = build.last_use(tensor)
        build.hand_out(tensor, draw(st.sampled_from([first, min(first + 1, last), last, None])))
    return build.graph()


@st.composite
def _calls(draw, number, num_values, is_chain):
    sources = [num_values - 1]
    if not is_chain:
        sources = draw(
            st.lists(st.integers(0, num_values - 1), min_size=1, max_size=2, unique=True)
        )
        sources = [num_values - 1, *sources] if draw(st.booleans()) else sources
    is_random = draw(st.integers(0, 5)) == 5
    is_relu = not is_random and draw(st.integers(0, 3)) == 3
    num_outputs = 1 if is_relu else draw(st.integers(1, 2))
    rare = draw(st.integers(0, 11))
    return Call(
        sources=sources[:1] if is_relu else list(dict.fromkeys(sources)),
        sizes=[draw(SIZES) for _ in range(num_outputs)],
        name="aten.relu.default" if is_relu else f"aten.f{number}.default",
        extra={
            "time_ms": float(draw(st.integers(0, 9))),
            "is_random": is_random,
            "workspace_bytes": draw(st.sampled_from([0, 0, 0, 30])),
            "piece": -1 if rare == 6 and not is_relu else 0,
            "node": f"f{number}",
            "phase": Phase.LOSS if rare == 1 else Phase.FORWARD,
        },
        has_buffer=rare in (2, 3) and not is_relu,
        updates_buffer=rare == 2 and not is_relu,
        is_handed_out=rare in (4, 5) and num_outputs == 1,
        late_reads=[draw(st.integers(0, 2)) < 2 for _ in range(3 + num_outputs)],
        reads_weight=draw(st.integers(0, 2)) == 2,
        gradient_bytes=draw(SIZES),
        weight_gradient=draw(st.integers(0, 3)) == 3,
    )


def _add_forward(build, calls, buffer):
    """What each operation read and wrote."""
    values, done = [build.tensor(20, kind=Kind.INPUTS)], []
    for call in calls:
        reads = [values[source] for source in call.sources]
        extra = dict(call.extra)
        if call.has_buffer:
            extra["remake_reads"] = tuple(reads)
            extra["updates"] = (buffer,) if call.updates_buffer else ()
        phase = extra.pop("phase")
        writes = build.operation(
            call.name, phase, [*reads, buffer] if call.has_buffer else reads, call.sizes, **extra
        )
        values.extend(writes)
        done.append((reads, writes))
    return done


def _recorded(calls, forward):
    """Tensors that live as recorded: made outside the piece, or handed out."""
    return [
        tensor
        for call, (_, writes) in zip(calls, forward, strict=True)
        if call.is_outside or call.is_handed_out
        for tensor in writes
    ]


def _add_backward(build, calls, forward, weight):
    """Gradients of weights, which stay."""
    gradient, stay = None, []
    for call, (inputs, outputs) in reversed(list(zip(calls, forward, strict=True))):
        if call.name == "aten.relu.default":
            reads = [weight if gradient is None else gradient, outputs[0]]
            name = "aten.threshold_backward.default"
        else:
            reads = [] if gradient is None else [gradient]
            chosen = zip((*inputs, *outputs), call.late_reads, strict=False)
            reads += [tensor for tensor, is_read in chosen if is_read]
            reads += [weight] if call.reads_weight else []
            name = "aten.backward.default"
        node = f"{call.extra['node']}_backward"
        (gradient,) = build.backward(
            reads, call.gradient_bytes, name=name, node=node, piece=call.extra["piece"]
        )
        if call.weight_gradient:
            (made,) = build.backward(
                [gradient, inputs[0]], 8, node=f"{node}_w", kind=Kind.GRADIENTS, planned=False
            )
            stay.append(made)
    return stay


def _add_optimizer(draw, build, weight, gradients):
    state = build.tensor(draw(SIZES), kind=Kind.OPTIMIZER_STATE)
    for gradient in gradients or [weight]:
        (step,) = build.operation(
            "aten.mul.Tensor", Phase.OPTIMIZER, [gradient, state], [draw(SIZES)],
            kind=Kind.TEMPORARIES_OPTIMIZER, planned=False, piece=-1,
        )  # fmt: skip
        build.operation(
            "aten.add_.Tensor", Phase.OPTIMIZER, [weight, step], [], piece=-1,
            updates=(weight, state),
        )  # fmt: skip
        build.hand_out(step, build.last_use(step))
