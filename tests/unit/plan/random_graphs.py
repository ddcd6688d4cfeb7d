"""Small random training steps for Hypothesis: branches, shared tensors, views' absence, many ways.

`graphs()` draws a forward DAG with its backward: several outputs per operation, skip connections,
random operations, tensors that only remakes would read, outputs that the caller keeps, weights'
gradients, and ReLUs with two formulas.
"""

from hypothesis import strategies as st

from legroom.capture import Graph, Kind, OperationInfo, Phase, TensorInfo


class Builder:
    """Adds tensors and operations in order."""

    def __init__(self):
        self.tensors, self.operations = [], []

    def tensor(self, num_bytes, *, producer=-1, kind=Kind.STASH, planned=True, released=None):
        index = len(self.tensors)
        self.tensors.append(
            TensorInfo(
                index, f"t{index}", num_bytes, kind, producer=producer,
                is_planned=planned and producer >= 0, released_after=released,
            )
        )  # fmt: skip
        return index

    def operation(self, name, phase, reads, sizes, *, time_ms=1.0, kind=Kind.STASH, **extra):
        index = len(self.operations)
        writes = tuple(self.tensor(size, producer=index, kind=kind) for size in sizes)
        self.operations.append(
            OperationInfo(
                index, name, phase, tuple(dict.fromkeys(reads)), writes,
                piece=0, time_ms=time_ms, **extra,
            )
        )  # fmt: skip
        return writes

    def graph(self):
        return Graph(tuple(self.tensors), tuple(self.operations), num_pieces=1)


@st.composite
def graphs(draw, max_operations=6):
    """A step with at most `max_operations` in forward; sizes and times are small whole numbers."""
    build = Builder()
    size = st.integers(1, 60)
    weight = build.tensor(draw(size), kind=Kind.WEIGHTS)
    values = [build.tensor(draw(size), kind=Kind.INPUTS)]
    forward = []
    for number in range(draw(st.integers(1, max_operations))):
        sources = draw(st.lists(st.sampled_from(values), min_size=1, max_size=2, unique=True))
        sources = [values[-1], *sources] if draw(st.booleans()) else sources
        is_random = draw(st.integers(0, 5)) == 0
        is_relu = not is_random and draw(st.integers(0, 3)) == 0
        writes = build.operation(
            "aten.relu.default" if is_relu else f"aten.f{number}.default",
            Phase.FORWARD,
            [sources[0]] if is_relu else sources,
            [draw(size)] if is_relu else [draw(size) for _ in range(draw(st.integers(1, 2)))],
            time_ms=float(draw(st.integers(0, 9))),
            is_random=is_random,
            workspace_bytes=draw(st.sampled_from([0, 0, 0, 30])),
        )
        forward.append((build.operations[-1], writes))
        values.extend(writes)
    gradient = None
    for op, writes in reversed(forward):
        if op.name.startswith("aten.relu"):
            incoming = gradient if gradient is not None else weight
            reads = [incoming, writes[0]]
            name = "aten.threshold_backward.default"
        else:
            reads = [] if gradient is None else [gradient]
            reads += [t for t in (*op.reads, *writes) if draw(st.booleans())]
            name = "aten.backward.default"
        if draw(st.integers(0, 2)) == 0:
            reads.append(weight)
        (gradient,) = build.operation(
            name, Phase.BACKWARD, reads, [draw(size)], kind=Kind.TEMPORARIES_BACKWARD
        )
    return build.graph()
