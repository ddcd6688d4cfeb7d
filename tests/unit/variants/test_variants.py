"""The registry of variants, and the rule of each. The formulas are tested where they are run."""

import inspect

import pytest

from legroom import variants, ways
from legroom.capture import Kind
from legroom.errors import UnknownNameError
from legroom.plan._problem import build_problem
from legroom.variants import ReluFromInput, ShapeOnly
from legroom.ways import Exactness
from tests.unit.plan.random_graphs import Builder


@pytest.mark.parametrize("name", variants.names())
def test_every_variant_describes_itself(name):
    variant = variants.get(name)
    assert variant.name == name
    assert issubclass(variant, variants.AbstractVariant | variants.AbstractRewrite)
    assert not inspect.isabstract(variant)
    assert isinstance(variant.exactness, Exactness)
    assert all((variant.summary, variant.origin, variant.costs))


def test_names_of_ways_and_variants_differ():
    assert not set(ways.names()) & set(variants.names())


def test_select_takes_what_is_enabled():
    assert variants.select() == (ReluFromInput, ShapeOnly)
    assert variants.select(("shape-only",)) == (ShapeOnly,)
    assert variants.select(()) == ()


def test_an_unknown_variant_is_named():
    with pytest.raises(UnknownNameError, match=r"unknown variant 'shape_only'.*'shape-only'\?"):
        variants.get("shape_only")


def relu_step(forward="aten.relu.default", backward="aten.threshold_backward.default"):
    """t0 -> t1 -> relu -> t2; the gradient t3 and t2 give t4."""
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (a,) = build.forward([x], 100)
    (b,) = build.forward([a], 100, name=forward)
    (gradient,) = build.backward([], 20)
    build.backward([gradient, b], 20, name=backward)
    return build.graph()


def test_a_relu_reads_its_input_instead():
    graph = relu_step()
    assert ReluFromInput.reads(graph.operations[-1], graph) == (3, 1)
    assert ShapeOnly.reads(graph.operations[-1], graph) is None


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        ("aten.relu.default", "aten.sigmoid_backward.default"),
        ("aten.hardtanh.default", "aten.threshold_backward.default"),
        ("aten.relu6.default", "aten.threshold_backward.default"),
        ("aten.leaky_relu.default", "aten.threshold_backward.default"),
    ],
)
def test_only_a_relus_gradient_has_the_other_formula(forward, backward):
    graph = relu_step(forward, backward)
    assert ReluFromInput.reads(graph.operations[-1], graph) is None


def test_a_relu_from_before_the_step_has_no_input():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (gradient,) = build.backward([], 20)
    build.backward([gradient, x], 20, name="aten.threshold_backward.default")
    graph = build.graph()
    assert ReluFromInput.reads(graph.operations[-1], graph) is None


POOLS = (
    "aten.max_pool2d_with_indices_backward.default",
    "aten.max_pool3d_with_indices_backward.default",
    "aten.avg_pool2d_backward.default",
    "aten.avg_pool3d_backward.default",
    "aten._adaptive_avg_pool2d_backward.default",
    "aten._adaptive_avg_pool3d_backward.default",
)


@pytest.mark.parametrize("name", POOLS)
def test_pooling_does_without_its_input(name):
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (a,) = build.forward([x], 100)
    (_, indices) = build.forward([a], 25, 25)
    (gradient,) = build.backward([], 25)
    reads = [gradient, a, indices] if "indices" in name else [gradient, a]
    build.backward(reads, 100, name=name)
    graph = build.graph()
    left = tuple(tensor for tensor in reads if tensor != a)
    assert ShapeOnly.reads(graph.operations[-1], graph) == left
    assert ReluFromInput.reads(graph.operations[-1], graph) is None


def test_what_needs_values_is_left_alone():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (a,) = build.forward([x], 100)
    (gradient,) = build.backward([], 25)
    build.backward([gradient, a], 100, name="aten.max_pool2d_with_indices.default")
    build.backward([gradient], 100, name="aten.avg_pool2d_backward.default")
    build.backward([gradient, a], 100, name="aten.convolution_backward.default")
    graph = build.graph()
    assert all(ShapeOnly.reads(op, graph) is None for op in graph.operations)


def test_a_formula_that_needs_less_replaces_the_other():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (a,) = build.forward([x], 100)
    (b,) = build.forward([a], 25)
    (gradient,) = build.backward([b], 25)
    build.backward([gradient, a], 100, name="aten.avg_pool2d_backward.default")
    problem = build_problem(build.graph(), ways.select(), variants.select())
    assert problem.variant_names == {3: ("shape-only",)}
    assert 3 not in problem.needs
    plain = build_problem(build.graph(), ways.select())
    assert plain.variant_names == {}
    assert 3 in plain.needs


def test_formulas_are_for_captured_operations():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (a,) = build.forward([x], 100)
    (gradient,) = build.backward([a], 25)
    build.backward([gradient, a], 100, name="aten.avg_pool2d_backward.default", piece=-1)
    problem = build_problem(build.graph(), ways.select(), variants.select())
    assert problem.variant_names == {}
