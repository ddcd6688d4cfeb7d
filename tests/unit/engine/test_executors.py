"""What runs a planned graph."""

import contextlib
import functools
import importlib
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import legroom
from legroom.engine.graph import _executors, choose_executor
from legroom.engine.graph._executors import (
    _fusing_neighbours,
    _inputs_as_they_lie,
    view_or_copy,
)
from legroom.errors import InfeasibleBudgetError, UsageError
from tests.unit.engine.training import check_same


@pytest.fixture(scope="module")
def inductor():
    """Inductor's modules, which warn when they are imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = ("compile_fx", "config", "choices", "graph", "virtualized")
        return SimpleNamespace(
            **{name: importlib.import_module(f"torch._inductor.{name}") for name in names}
        )


class Attending(nn.Module):
    """Keys behind an empty cache, seen through views that need eager's strides."""

    def __init__(self):
        super().__init__()
        self.keys = nn.Linear(32, 32)
        self.queries = nn.Linear(32, 32)

    def forward(self, value):
        batch, length, _ = value.shape
        keys = self.keys(value).view(batch, length, 2, 16).transpose(1, 2)
        keys = torch.cat([torch.tensor([]), keys], dim=-2)
        turned = (keys.transpose(-2, -1) * 0.5).view(batch * 2, 16, length)
        queries = self.queries(value).view(batch, length, 2, 16).transpose(1, 2)
        scores = torch.bmm(queries.reshape(batch * 2, length, 16), turned)
        return torch.softmax(scores, -1).square().mean()


class Rolled(nn.Module):
    """What PyTorch takes for contiguous though it is not, before a product that wants it so."""

    def __init__(self):
        super().__init__()
        self.norm, self.project = nn.BatchNorm1d(32), nn.Linear(32, 32)

    def forward(self, value):
        value = self.norm(self.project(value).transpose(1, 2)).transpose(1, 2)
        turned = self.project(value).view(4, 4, 8, 32).permute(0, 3, 1, 2)
        return self.project(torch.roll(turned, 1, 1).reshape(128, 32)).square().mean()


def gradients_of_rolled(model, step):
    loss = model(torch.randn(4, 32, 32, generator=torch.Generator().manual_seed(step)))
    loss.backward()
    return loss


def test_a_layout_that_torch_foretells_wrong_trains_the_same():
    check_same(Rolled(), gradients_of_rolled, budget="95%", within_budget=False, is_remade=False)


def test_a_view_is_a_copy_where_there_can_be_none():
    value = torch.arange(24.0).view(2, 3, 4)
    assert view_or_copy(value, [6, 4]).data_ptr() == value.data_ptr()
    turned = value.transpose(1, 2)
    assert torch.equal(view_or_copy(turned, [8, 3]), turned.reshape(8, 3))


@pytest.mark.parametrize("exactness", ["bitwise", "rounding"])
def test_inductor_needs_rounding(exactness):
    assert choose_executor("eager", exactness).name == "eager"
    if exactness == "rounding":
        assert choose_executor("inductor", exactness).name == "inductor"
    else:
        with pytest.raises(UsageError, match="changes rounding"):
            choose_executor("inductor", exactness)


@pytest.mark.slow
def test_inductor_may_leave_other_strides_than_eager():
    torch.manual_seed(0)
    model, data = Attending(), torch.randn(4, 128, 32)
    expected = model(data)
    expected.backward()
    gradients = [param.grad.clone() for param in model.parameters()]
    fitted = legroom.fit(model, activations="70%", exactness="rounding", executor="inductor")
    model.zero_grad()
    found = model(data)
    found.backward()
    fitted.undo()
    torch.testing.assert_close(found, expected)
    for param, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(param.grad, gradient, rtol=1e-4, atol=1e-7)


def test_inductor_fuses_only_what_lies_close_together(monkeypatch, inductor):
    def node(first, last):
        return SimpleNamespace(min_order=first, max_order=last)

    base, virtual = inductor.choices.InductorChoices, inductor.virtualized.V
    monkeypatch.setattr(base, "can_fuse", staticmethod(lambda *rest: True))
    with _fusing_neighbours():
        assert virtual.choices.can_fuse(None, node(3, 5), node(6, 27), 1)
        # Torch's own would: remade at the end of backward, next to what reads the same before it.
        assert not virtual.choices.can_fuse(None, node(3, 5), node(28, 28), 1)
        assert not virtual.choices.can_fuse(None, node(40, 41), node(3, 5), 1)
        assert "neighbours" in inductor.config.inductor_choices_class().uuid()
    assert virtual.choices.can_fuse(None, node(3, 5), node(60, 60), 1)
    assert inductor.config.inductor_choices_class is None


def test_inductor_compiles_under_that_rule(monkeypatch, inductor):
    asked = []

    @contextlib.contextmanager
    def noted():
        asked.append(True)
        with _fusing_neighbours():
            yield

    monkeypatch.setattr(_executors, "_fusing_neighbours", noted)
    monkeypatch.setattr(inductor.compile_fx, "compile_fx_inner", lambda graph, inputs: graph)
    graph = fx.symbolic_trace(lambda value: value + 1)
    choose_executor("inductor", "rounding").compile(graph, [torch.ones(2)])
    assert asked == [True]


class Classifier(nn.Module):
    """The logits are by far the largest; at the loss there are two of them, or three."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(16, 2048, bias=False)

    def forward(self, value, target):
        return nn.functional.cross_entropy(self.project(value), target)


def one_step(model, *batch):
    model.zero_grad()
    model(*batch).backward()


@pytest.mark.slow
def test_inductor_needs_no_more_for_a_loss_than_predicted():
    torch.manual_seed(0)
    model, batch = Classifier(), (torch.randn(512, 16), torch.randint(0, 2048, (512,)))
    fitted = legroom.fit(
        model,
        budget="90%",
        exactness="rounding",
        executor="inductor",
        without=("loss-without-logits",),
        step=lambda: one_step(model, *batch),
    )
    for _ in range(4):
        one_step(model, *batch)
    report = fitted.report()
    fitted.undo()
    assert report.replans == 0
    assert report.measured_peak_bytes <= report.predicted_peak_bytes + 64 * 1024


NO_LESS = 2_200_000
"""What training takes of which nothing can be saved: weight and gradient set the peak."""


def small_step(model, data):
    model.zero_grad()
    model(data).sum().backward()


def fit_compiled(model, data):
    return legroom.fit(
        model,
        budget=NO_LESS,
        exactness="rounding",
        executor="inductor",
        step=lambda: small_step(model, data),
    )


@pytest.mark.slow
def test_what_is_asked_to_be_compiled_is_where_nothing_is_saved(monkeypatch):
    model, data = nn.Linear(512, 512), torch.randn(2, 512)
    compiled = []
    compile_graph = _executors.Inductor.compile

    def noted(self, graph, inputs):
        compiled.append(graph)
        return compile_graph(self, graph, inputs)

    monkeypatch.setattr(_executors.Inductor, "compile", noted)
    fitted = fit_compiled(model, data)
    for _ in range(3):
        small_step(model, data)
    report = fitted.report()
    fitted.undo()
    assert len(compiled) == 2, "forward and backward"
    assert report.predicted_peak_bytes >= report.plain_peak_bytes


def test_what_is_compiled_above_the_budget_runs_as_it_is(monkeypatch):
    model, data = nn.Linear(512, 512), torch.randn(2, 512)
    run_eagerly = choose_executor("eager", "bitwise").compile
    ballast = []

    def wasteful(self, graph, inputs):
        run = run_eagerly(graph, inputs)

        def waste(args):
            ballast[:] = [torch.empty(2**20)]
            return run(args)

        waste._boxed_call = True
        return waste

    monkeypatch.setattr(_executors.Inductor, "compile", wasteful)
    said = []
    monkeypatch.setattr(legroom.Fitted, "say", lambda self, text: said.append(text))
    fitted = fit_compiled(model, data)
    for _ in range(2):
        small_step(model, data)
        ballast.clear()
    assert any("above the budget" in text for text in said)
    assert fitted.plan.preset == "plain"
    small_step(model, data)
    assert not ballast, "the compiled call is no longer made"
    fitted.undo()


def test_room_that_no_plan_leaves_is_refused_though_it_is_compiled(monkeypatch):
    model, data = nn.Linear(512, 512), torch.randn(2, 512)
    run_eagerly = choose_executor("eager", "bitwise").compile
    monkeypatch.setattr(
        _executors.Inductor, "compile", lambda self, graph, inputs: run_eagerly(graph, inputs)
    )
    fitted = fit_compiled(model, data)
    small_step(model, data)
    with pytest.raises(InfeasibleBudgetError):
        fitted.reserve(NO_LESS // 2)
    fitted.undo()


def test_inductor_compiles_under_our_fake_rules(monkeypatch, inductor):
    # PyTorch's own rule refuses anything but bfloat16, which is no rule of its kernel on a CPU.
    # A backward that is compiled when it first runs is compiled outside of any planned call.
    monkeypatch.setattr(inductor.compile_fx, "compile_fx_inner", lambda graph, inputs: graph)
    grouped = torch.ops.aten._grouped_mm.default

    def product(rows, weights, ends):
        return grouped(rows, weights, ends)

    graph = fx.symbolic_trace(product)
    with FakeTensorMode():
        inputs = [torch.empty(8, 16), torch.empty(2, 16, 16), torch.empty(2, dtype=torch.int32)]
    made = choose_executor("inductor", "rounding").compile(graph, inputs)
    assert grouped in [node.target for node in made.graph.nodes]


def test_inductor_leaves_inputs_as_they_lie(monkeypatch, inductor):
    lowering = inductor.graph.GraphLowering
    nodes = list(fx.symbolic_trace(lambda value, weight: value * weight).graph.nodes)
    monkeypatch.setattr(lowering, "find_nodes_prefer_channels_last", lambda self: set(nodes))
    with _inputs_as_they_lie():
        found = lowering.find_nodes_prefer_channels_last(None)
        assert {node.op for node in found} == {"call_function", "output"}
    assert lowering.find_nodes_prefer_channels_last(None) == set(nodes)


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        (["convolution", "convolution", "addmm"], True),
        (["convolution_backward", "relu"], True),
        (["convolution", "convolution", "native_group_norm"], False),
        (["convolution", "addmm", "addmm"], False),
        (["mm"], False),
    ],
)
def test_only_what_is_convolutional_is_laid_out_anew(operations, expected):
    graph = fx.Graph()
    for name in operations:
        graph.call_function(getattr(torch.ops.aten, name).default)
    assert _executors._is_convolutional(graph) == expected


class Convolutions(nn.Module):
    """Weights that together are larger than what one of them is applied to."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Conv2d(96, 96, 3, padding=1), nn.ReLU()) for _ in range(8))
        )

    def forward(self, value):
        return self.layers(value).square().mean()


@pytest.mark.slow
def test_convolutions_laid_out_anew_keep_no_copies_of_weights():
    torch.manual_seed(0)
    model, data = Convolutions(), torch.randn(32, 96, 12, 12)
    weight_bytes = model.layers[0][0].weight.nbytes
    fitted = legroom.fit(
        model,
        budget="95%",
        exactness="rounding",
        executor="inductor",
        step=lambda: one_step(model, data),
    )
    for _ in range(4):
        one_step(model, data)
    report = fitted.report()
    fitted.undo()
    assert report.replans == 0
    assert report.measured_peak_bytes <= report.predicted_peak_bytes + 2 * weight_bytes


def test_where_no_other_plan_fits_it_is_compiled_plainer(monkeypatch):
    model, data = Convolutions(), torch.randn(16, 96, 12, 12)
    run_eagerly = choose_executor("eager", "bitwise").compile

    def wasteful(self, graph, inputs):
        run = run_eagerly(graph, inputs)

        def waste(args):
            ballast = torch.empty(2**22) if self.plainer is not None else None
            try:
                return run(args)
            finally:
                del ballast

        waste._boxed_call = True
        return waste

    monkeypatch.setattr(_executors.Inductor, "compile", wasteful)
    said = []
    monkeypatch.setattr(legroom.Fitted, "say", lambda self, text: said.append(text))
    step = functools.partial(one_step, model, data)
    floor_bytes = legroom.plan(step, points=0, exactness="rounding").floor_peak_bytes
    fitted = legroom.fit(
        model, budget=floor_bytes + 2**17, exactness="rounding", executor="inductor", step=step
    )
    for _ in range(6):
        step()
    report = fitted.report()
    fitted.undo()
    assert ["above the budget" in text for text in said] == [True, False]
    assert "compiling so that it takes less" in said[1]
    assert report.measured_peak_bytes <= report.budget_bytes


def graph_of(*steps):
    """A graph of one input, in which each operation reads what the one before it has made."""
    graph = fx.Graph()
    made = graph.placeholder("value")
    for step in steps:
        made = graph.call_function(step, (made,))
    graph.output((made,))
    return fx.GraphModule(nn.Module(), graph)


def test_no_operation_is_looked_up_by_name_while_a_graph_runs(monkeypatch):
    turn, sine = torch.ops.aten.t.default, torch.ops.aten.sin.default
    value = torch.randn(3, 4)
    expected = value.t().sin().t()
    run = choose_executor("eager", "bitwise").compile(graph_of(turn, turn, turn, sine, turn), None)
    called = []
    monkeypatch.setattr(type(turn), "__call__", lambda self, *args: called.append(self))
    args = [value]
    (made,) = run(args)
    assert torch.equal(made, expected)
    assert made.stride() == expected.stride()
    assert not args, "inputs are let go"
    assert not called


def test_what_turns_a_matrix_twice_is_left_out():
    turn, sine = torch.ops.aten.t.default, torch.ops.aten.sin.default
    graph = graph_of(turn, turn, sine, turn, turn)
    choose_executor("eager", "bitwise").compile(graph, None)
    assert [node.target for node in graph.graph.nodes][1:-1] == [sine, turn, turn], "is returned"
