"""Training steps of made-up models, with shapes that matter: blocks, long skips, plain chains."""

from dataclasses import replace

from legroom.capture import Kind, Phase
from tests.unit.plan.random_graphs import Builder

KIB = 1024


class Model:
    """Forward operations as they are called; `step()` adds backward and an optimizer."""

    def __init__(self, batch_bytes=8 * KIB):
        self.build = Builder()
        self.batch = self.build.tensor(batch_bytes, kind=Kind.INPUTS)
        self._tape = []

    def call(self, name, reads, num_bytes, *, saves=(), weight_bytes=0, **extra):
        """Run an operation whose backward reads `saves`; `"out"` stands for what it makes."""
        build = self.build
        weights = [build.tensor(weight_bytes, kind=Kind.WEIGHTS)] if weight_bytes else []
        (out,) = build.forward([*reads, *weights], num_bytes, name=f"aten.{name}", **extra)
        saved = [out if each == "out" else each for each in saves]
        self._tape.append((name, list(reads), out, [*saved, *weights], weights, extra))
        return out

    def step(self):
        build, gradients, weight_gradients = self.build, {}, []
        for name, reads, out, saved, weights, extra in reversed(self._tape):
            module, time_ms = extra.get("module", ""), extra.get("time_ms", 1.0)
            parts = gradients.pop(out, [])
            if len(parts) > 1:
                parts = build.backward(
                    parts, build.tensors[out].num_bytes, name="aten.add.Tensor", module=module
                )
            for tensor in reads:
                if build.tensors[tensor].producer < 0:
                    continue
                (gradient,) = build.backward(
                    [*parts, *saved], build.tensors[tensor].num_bytes,
                    name=f"aten.{name}_backward", module=module, time_ms=time_ms,
                )  # fmt: skip
                gradients.setdefault(tensor, []).append(gradient)
            for weight in weights:
                (gradient,) = build.backward(
                    [*parts, *saved], build.tensors[weight].num_bytes, name="aten.mm.default",
                    kind=Kind.GRADIENTS, planned=False, module=module, time_ms=time_ms,
                )  # fmt: skip
                weight_gradients.append((weight, gradient))
        for weight, gradient in weight_gradients:
            build.operation(
                "aten.add_.Tensor", Phase.OPTIMIZER, [weight, gradient], [],
                piece=-1, updates=(weight,), time_ms=0.1,
            )  # fmt: skip
        return build.graph()


def transformer(num_blocks=6, width=10 * KIB):
    """Blocks `h.0`, `h.1`, … of a norm, two matrix products with a GELU between, and a sum."""
    model = Model()
    x = model.call(
        "mm.default", [model.batch], width, saves=[model.batch], weight_bytes=500, time_ms=3.0
    )
    for number in range(num_blocks):
        module = f"h.{number}"
        norm = model.call(
            "native_layer_norm.default", [x], width, saves=[x], module=f"{module}.ln", time_ms=0.4
        )
        wide = model.call(
            "addmm.default", [norm], 4 * width, saves=[norm], weight_bytes=800,
            module=f"{module}.up", time_ms=4.0,
        )  # fmt: skip
        gelu = model.call(
            "gelu.default", [wide], 4 * width, saves=[wide], module=f"{module}.act", time_ms=0.8
        )
        down = model.call(
            "addmm.default", [gelu], width, saves=[gelu], weight_bytes=800,
            module=f"{module}.down", time_ms=4.0,
        )  # fmt: skip
        drop = model.call(
            "native_dropout.default", [down], width, saves=["out"], is_random=True,
            module=f"{module}.drop", time_ms=0.5,
        )  # fmt: skip
        x = model.call("add.Tensor", [x, drop], width, module=module, time_ms=0.3)
    model.call("mse_loss.default", [x], 4, saves=[x], time_ms=0.2)
    model.build.blocks = tuple(f"h.{number}" for number in range(num_blocks))
    return model.step()


def unet(depth=4, width=32 * KIB):
    """Halves at each level, then doubles again, with a skip across each; no module repeats."""
    model = Model()
    x, skips, size = model.batch, [], width
    for level in range(depth):
        conv = model.call(
            "convolution.default", [x], size, saves=[x], weight_bytes=700,
            module=f"down{level}", time_ms=5.0,
        )  # fmt: skip
        relu = model.call("relu.default", [conv], size, saves=["out"], time_ms=0.5)
        skips.append(relu)
        size //= 2
        x = model.call("avg_pool2d.default", [relu], size, saves=[relu], time_ms=0.5)
    for level in reversed(range(depth)):
        size *= 2
        joined = model.call("cat.default", [x, skips[level]], 2 * size, time_ms=0.3)
        conv = model.call(
            "convolution.default", [joined], size, saves=[joined], weight_bytes=900,
            module=f"up{level}", time_ms=6.0,
        )  # fmt: skip
        x = model.call("relu.default", [conv], size, saves=["out"], time_ms=0.5)
    model.call("mse_loss.default", [x], 4, saves=[x], time_ms=0.2)
    return model.step()


def chain(length=12, width=16 * KIB):
    """One operation after the other; every third is expensive."""
    model = Model()
    x = model.batch
    for number in range(length):
        name, time_ms = ("mm.default", 5.0) if number % 3 == 0 else ("sin.default", 0.5)
        size = width if number % 2 else width // 2
        x = model.call(name, [x], size, saves=[x], time_ms=time_ms)
    model.call("mse_loss.default", [x], 4, saves=[x], time_ms=0.2)
    return model.step()


MADE_UP = {"transformer": transformer, "unet": unet, "chain": chain}


def as_recorded(graph):
    """The plain step: no piece, and every tensor alive until its last use."""
    ends = {tensor: op.index for op in graph.operations for tensor in (*op.reads, *op.writes)}
    tensors = tuple(
        replace(each, is_planned=False, released_after=ends[each.index])
        if each.is_planned
        else each
        for each in graph.tensors
    )
    operations = tuple(replace(op, piece=-1) for op in graph.operations)
    return replace(graph, tensors=tensors, operations=operations)
