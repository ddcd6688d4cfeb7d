import logging
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.checkpoint import checkpoint

from legroom.capture import Capture, Graph, Kind, Phase, StepCapture, StepFinder, capture_here
from legroom.errors import CaptureFailedError, NothingCapturedError

LOGGER = logging.getLogger(__name__)


def training(net, optimizer, x, *, loss=lambda output: output.square().mean()):
    def step():
        optimizer.zero_grad()
        loss(net(x)).backward()
        optimizer.step()

    return step


def mlp():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def capture_of(net, *, x=None, optimizer=None, **kwargs):
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.1)
    return capture_here(training(net, optimizer, torch.randn(16, 8) if x is None else x, **kwargs))


def check(graph):
    """What every graph promises; see Note [Graph]."""
    assert [tensor.index for tensor in graph.tensors] == list(range(len(graph.tensors)))
    assert len({tensor.name for tensor in graph.tensors}) == len(graph.tensors)
    for op in graph.operations:
        for index in op.reads:
            tensor = graph.tensors[index]
            assert tensor.producer < op.index
            is_alive = tensor.released_after is None or tensor.released_after >= op.index
            assert tensor.is_planned or is_alive, (op, tensor)
        assert all(graph.tensors[index].producer == op.index for index in op.writes)
        assert not set(op.updates) & set(op.writes)
    assert Graph.from_json(graph.to_json()) == graph


def peak_bytes(graph):
    """The most that is alive of what the step touches."""
    uses = {}
    for op in graph.operations:
        for index in (*op.reads, *op.writes, *op.updates):
            uses[index] = op.index
    peak = 0
    for now in range(len(graph.operations)):
        live = 0
        for index, last_use in uses.items():
            tensor = graph.tensors[index]
            end = last_use if tensor.is_planned else tensor.released_after
            live += tensor.num_bytes * (tensor.producer <= now and (end is None or now <= end))
        peak = max(peak, live)
    return peak


def used(graph, kind):
    """Tensors of a kind that the step touches; other tests may have left some that it does not."""
    touched = {index for op in graph.operations for index in (*op.reads, *op.writes, *op.updates)}
    return [graph.tensors[index] for index in sorted(touched) if graph.tensors[index].kind is kind]


def names_of(graph, phase):
    return [op.name for op in graph.operations if op.phase is phase]


def notes_of(capture):
    return " | ".join(f"{note.what}: {note.why}" for note in capture.planned.not_captured)


def test_a_step_is_captured_whole():
    capture = capture_of(mlp())
    assert isinstance(capture, Capture)
    check(capture.plain)
    check(capture.planned)
    assert (capture.plain.num_pieces, capture.planned.num_pieces) == (0, 1)
    assert not any(tensor.is_planned for tensor in capture.plain.tensors)
    assert not any(op.piece >= 0 for op in capture.plain.operations)
    for graph in (capture.plain, capture.planned):
        assert names_of(graph, Phase.FORWARD) == [
            "aten.addmm.default",
            "aten.relu.default",
            "aten.addmm.default",
        ]
        assert "aten.threshold_backward.default" in names_of(graph, Phase.BACKWARD)
        assert names_of(graph, Phase.LOSS)[0] == "aten.pow.Tensor_Scalar"
        assert graph.torch_version == torch.__version__
        assert capture.plain.device == "cpu"
    assert capture.seconds > 0


def test_kinds_and_names_are_told():
    net = mlp()
    capture = capture_of(net, optimizer=torch.optim.Adam(net.parameters()))
    for graph in (capture.plain, capture.planned):
        kinds = {}
        for tensor in graph.tensors:
            kinds.setdefault(tensor.kind, set()).add(tensor.name)
        assert {"0.weight", "2.bias"} <= kinds[Kind.WEIGHTS]
        assert {"0.weight.grad", "2.bias.grad"} <= kinds[Kind.GRADIENTS]
        assert {"0.weight.exp_avg", "2.bias.exp_avg_sq"} <= kinds[Kind.OPTIMIZER_STATE]
        weights = [each for each in graph.tensors if each.name == "0.weight"]
        assert (weights[0].num_bytes, weights[0].producer) == (8 * 32 * 4, -1)
        stash = [tensor for tensor in graph.tensors if tensor.kind is Kind.STASH]
        assert any(tensor.shape == (16, 32) for tensor in stash)
    hidden = [tensor for tensor in capture.planned.tensors if tensor.shape == (16, 32)]
    assert all(tensor.is_planned for tensor in hidden)
    assert {tensor.module for tensor in hidden} == {"0", "1", "2"}


def test_lines_are_those_of_the_model():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            x = self.layer(x)
            return torch.sigmoid(x)

    for graph in vars(capture_of(Net())).values():
        if isinstance(graph, Graph):
            ops = {op.name: op for op in graph.operations}
            forward, backward = ops["aten.sigmoid.default"], ops["aten.sigmoid_backward.default"]
            assert forward.line == backward.line
            assert "test_step_capture.py:" in forward.line
            assert ops["aten.addmm.default"].module == "layer"
            assert forward.module == "Net"


def snapshot(net, optimizer):
    tensors = [*net.parameters(), *net.buffers()]
    tensors += [param.grad for param in net.parameters() if param.grad is not None]
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return [(id(each), type(each), each.detach().clone()) for each in tensors]


@pytest.mark.parametrize("is_warm", [True, False])
def test_everything_is_put_back(is_warm):
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    net[0].weight.mark = "kept"
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    inner = training(net, optimizer, torch.randn(16, 8))

    def step():
        inner()
        scheduler.step()
        net.remembered = net[0].weight * 2

    if is_warm:
        step()
        step()
    held = dict(vars(net))
    before = snapshot(net, optimizer)
    state_keys = [list(state) for state in optimizer.state.values()]
    rate, epoch = optimizer.param_groups[0]["lr"], scheduler.last_epoch
    seeds = torch.get_rng_state(), random.getstate()
    with torch._dynamo.config.patch(recompile_limit=5):
        capture_here(step)
        assert torch._dynamo.config.recompile_limit == 5
    after = snapshot(net, optimizer)
    assert len(after) == len(before)
    for (id_before, type_before, old), (id_after, type_after, new) in zip(
        before, after, strict=True
    ):
        assert (id_before, type_before) == (id_after, type_after)
        assert torch.equal(old, new)
    assert state_keys == [list(state) for state in optimizer.state.values()]
    assert (optimizer.param_groups[0]["lr"], scheduler.last_epoch) == (rate, epoch)
    assert torch.equal(torch.get_rng_state(), seeds[0])
    assert random.getstate() == seeds[1]
    assert vars(net).keys() == held.keys()
    assert all(vars(net)[key] is value for key, value in held.items())
    assert net[0].weight.mark == "kept"
    assert not torch._C._len_torch_dispatch_stack()
    step()
    assert all(type(param) is nn.Parameter for param in net.parameters())


def test_training_goes_on_with_the_same_bits():
    def run(is_captured):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(net.parameters())
        step = training(net, optimizer, torch.randn(16, 8))
        step()
        if is_captured:
            capture_here(step)
        step()
        return [param.detach().clone() for param in net.parameters()]

    assert all(map(torch.equal, run(False), run(True)))


def test_an_error_in_the_step_puts_everything_back():
    net = mlp()
    before = [param.detach().clone() for param in net.parameters()]

    def step():
        net(torch.randn(2, 8)).sum().backward()
        raise KeyError

    with pytest.raises(
        CaptureFailedError, match=r"memory at .*test_step_capture\.py:\d+: KeyError"
    ):
        capture_here(step)
    assert all(map(torch.equal, before, net.parameters()))
    assert all(param.grad is None for param in net.parameters())
    assert not torch._C._len_torch_dispatch_stack()


def test_random_operations_are_marked():
    capture = capture_of(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 4)))
    random_names = [
        [op.name for op in graph.operations if op.is_random]
        for graph in (capture.plain, capture.planned)
    ]
    assert random_names == [["aten.bernoulli_.float"], ["legroom.dropout_mask.default"]]


def test_batch_norm_updates_its_statistics_once():
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True))
    graph = capture_of(net).planned
    check(graph)
    updates = [op for op in graph.operations if op.updates and op.phase is Phase.FORWARD]
    updated = {graph.tensors[index].name for op in updates for index in op.updates}
    assert updated == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert all(op.piece == 0 for op in updates)
    (norm,) = [op for op in graph.operations if "batch_norm_legit" in op.name]
    read, again = (
        {graph.tensors[index].name for index in indexes}
        for indexes in (norm.reads, norm.needs_to_remake)
    )
    assert read - again == {"1.running_mean", "1.running_var"}


def test_tied_weights_are_one_tensor():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(20, 8)
            self.head = nn.Linear(8, 20, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens):
            return self.head(self.embedding(tokens))

    net = Tied()
    capture = capture_of(net, x=torch.randint(20, (4, 6)))
    for graph in (capture.plain, capture.planned):
        check(graph)
        assert [tensor.num_bytes for tensor in used(graph, Kind.WEIGHTS)] == [20 * 8 * 4]
    assert net.head.weight is net.embedding.weight


def test_parameters_that_are_views_stay_views():
    flat = torch.randn(12)
    net = nn.Linear(2, 4)
    net.weight = nn.Parameter(flat[:8].view(4, 2))
    net.bias = nn.Parameter(flat[8:])
    graph = capture_of(net, x=torch.randn(3, 2)).plain
    opening = [tensor for tensor in graph.tensors if tensor.num_bytes == 48 and tensor.producer < 0]
    assert [tensor.kind for tensor in opening] == [Kind.WEIGHTS]
    assert net.weight.untyped_storage()._cdata == flat.untyped_storage()._cdata
    assert torch.equal(net.bias, flat[8:])


def test_a_graph_break_makes_two_pieces():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x):
            x = self.first(x).relu()
            torch._dynamo.graph_break()
            return self.second(x)

    capture = capture_of(Broken())
    check(capture.planned)
    assert capture.planned.num_pieces == 2
    assert {op.piece for op in capture.planned.operations} == {-1, 0, 1}
    assert "a graph break" in notes_of(capture)
    modules = {op.module for op in capture.planned.operations if op.name == "aten.addmm.default"}
    assert modules == {"first", "second"}


def test_logging_breaks_nothing():
    class Talking(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x):
            LOGGER.info("here")
            return self.layer(x)

    capture = capture_of(Talking())
    assert capture.planned.num_pieces == 1
    assert notes_of(capture) == ""


def test_values_that_are_read_are_assumed():
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen = []

    def step():
        optimizer.zero_grad()
        loss = net(torch.randn(4, 8)).square().mean()
        seen.append(loss.item())
        loss.backward()
        optimizer.step()

    capture = capture_here(step)
    assert set(seen) == {1.0}
    (note,) = capture.plain.not_captured
    assert note.what.startswith("values read at ")
    assert "test_step_capture.py" in note.what
    assert "assumed" in note.why


def test_a_mask_of_made_up_numbers_may_select_everything():
    net = mlp()
    sizes = []

    def step():
        made = net(torch.randn(4, 8))
        kept = made[made.sum(1) > 0]
        sizes.append(len(kept))
        kept.square().mean().backward()

    capture = capture_here(step)
    assert set(sizes) == {4}
    assert "every element is taken to be selected" in capture.plain.not_captured[0].why


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda loss, norm: f"{norm:.4f}", "1.0000"),
        (lambda loss, norm: "{:.3f}".format(loss), "1.000"),  # noqa: UP032 - as scripts do
        (lambda loss, norm: f"{loss}", "1.0"),
        (lambda loss, norm: loss.detach().numpy().tolist(), 1.0),
        (lambda loss, norm: np.asarray(loss.detach()).dtype.name, "float32"),
        (lambda loss, norm: np.asarray(loss.detach(), dtype="float64").tolist(), 1.0),
        (lambda loss, norm: loss.expand(2, 3).detach().numpy().shape, (2, 3)),
        (lambda loss, norm: loss.numpy(force=True).tolist(), 1.0),
    ],
)
def test_formats_and_arrays_are_values_that_are_read(read, expected):
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen = []

    def step():
        optimizer.zero_grad()
        loss = net(torch.randn(4, 8)).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        seen.append(read(loss, norm))

    capture = capture_here(step)
    assert set(seen) == {expected}
    (note,) = capture.plain.not_captured
    assert note.what.startswith("values read at ")
    assert "test_step_capture.py" in note.what
    assert "numpy" not in vars(FakeTensor)
    assert "__format__" not in vars(FakeTensor)


def test_arrays_of_tensors_with_gradients_fail_as_in_plain_runs():
    net = mlp()

    def step():
        loss = net(torch.randn(4, 8)).square().mean()
        loss.backward()
        loss.numpy()

    with pytest.raises(CaptureFailedError, match=r"numpy\(\) on Tensor that requires grad"):
        capture_here(step)


def test_values_of_data_are_known():
    lengths = torch.tensor([2, 5])
    net, widths = mlp(), []

    def step():
        longest = int(lengths.max().item())
        widths.append(longest)
        net(torch.randn(longest, 8)).sum().backward()

    capture = capture_here(step)
    assert set(widths) == {5}
    assert capture.plain.not_captured == ()


def test_numbers_made_of_nothing_are_known():
    net, read = mlp(), []

    def step():
        positions = torch.arange(6)
        positions.add_(1)
        read.append(int(positions.sum()))
        unknown = torch.ones(2, dtype=torch.long)
        unknown.add_(net(torch.randn(2, 8)).detach().sum().long())
        read.append(int(unknown.sum()))
        net(torch.randn(4, 8)).sum().backward()

    capture = capture_here(step)
    assert set(read[::2]) == {21}
    assert set(read[1::2]) == {1}
    assert len(capture.plain.not_captured) == 1


def test_losses_that_are_written_into_keep_their_gradients():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            loss, extra = self.first(x).mean(), self.second(x).square().mean()
            torch._dynamo.graph_break()
            loss += 0.1 * extra
            return loss

    graph = capture_of(Broken(), loss=lambda output: output).planned
    check(graph)
    gradients = {tensor.name.removesuffix(".grad") for tensor in used(graph, Kind.GRADIENTS)}
    assert gradients == {"first.weight", "first.bias", "second.weight", "second.bias"}


def test_layers_that_share_code_keep_their_names():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            torch._dynamo.graph_break()
            return self.linear(x).relu()

    graph = capture_of(nn.Sequential(*(Layer() for _ in range(3)))).planned
    check(graph)
    forward = [op for op in graph.operations if op.name == "aten.addmm.default" and op.piece >= 0]
    assert [op.module for op in forward] == ["0.linear", "1.linear", "2.linear"]
    weights = [graph.tensors[op.reads[-1]].name for op in forward]
    assert weights == ["0.linear.weight", "1.linear.weight", "2.linear.weight"]


def test_double_backward_stays_as_it_is():
    critic, generator = mlp(), mlp()
    optimizer = torch.optim.SGD([*critic.parameters(), *generator.parameters()], lr=0.1)
    x = torch.randn(4, 8)

    def step():
        optimizer.zero_grad()
        point = torch.randn(4, 8, requires_grad=True)
        (slope,) = torch.autograd.grad(critic(point).sum(), point, create_graph=True)
        loss = (slope.norm(dim=1) - 1).square().mean() + critic(x).mean() + generator(x).mean()
        loss.backward()
        optimizer.step()

    capture = capture_here(step)
    check(capture.planned)
    assert "create_graph=True" in notes_of(capture)
    assert capture.planned.num_pieces == 2
    outside = [op for op in capture.planned.operations if op.piece < 0]
    assert "aten.addmm.default" in {op.name for op in outside}


def test_evaluating_in_between_needs_no_nested_tensors():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = nn.TransformerEncoder(layer, 1, enable_nested_tensor=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[:, 4:] = True

    def step():
        net.eval()
        with torch.no_grad():
            net(torch.randn(2, 6, 8), src_key_padding_mask=padding)
        net.train()
        net(torch.randn(2, 6, 8), src_key_padding_mask=padding).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert capture_here(step).planned.operations
    assert torch.backends.mha.get_fastpath_enabled()


class Scaled(nn.Module):
    """Backward reads a tensor that is made of numbers, and lies in its graph as it is."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, value):
        return checkpoint(self.scaled, value, use_reentrant=False)

    def scaled(self, value):
        return self.linear(value) / torch.sqrt(torch.tensor(value.size(-1), dtype=torch.float))


def test_backward_may_read_constants():
    assert capture_of(Scaled()).planned.operations


def test_two_models_have_two_names():
    first, second = mlp(), nn.Linear(4, 2)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)

    def step():
        optimizer.zero_grad()
        second(first(torch.randn(4, 8))).sum().backward()
        optimizer.step()

    capture = capture_here(step)
    check(capture.planned)
    assert capture.planned.num_pieces == 2
    assert {"0.weight", "Linear.weight"} <= {each.name for each in capture.planned.tensors}
    only = capture_here(step, models=[first])
    assert only.planned.num_pieces == 1
    assert "none of the models" in notes_of(only)


def test_gradients_are_accumulated_in_place():
    net = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        for _ in range(3):
            net(torch.randn(2, 64)).sum().backward()
        optimizer.step()

    capture = capture_here(step)
    for graph in (capture.plain, capture.planned):
        check(graph)
        assert len(used(graph, Kind.GRADIENTS)) == 1
        assert peak_bytes(graph) < 3.5 * 64 * 64 * 4
    assert {op.piece for op in capture.planned.operations} == {-1, 0}
    assert capture.planned.num_pieces == 1


def test_outputs_without_gradients_cost_nothing_in_backward():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 1000)

        def forward(self, x):
            logits = self.layer(x)
            return logits.logsumexp(1).mean(), logits

    net = Two()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        loss, _ = net(torch.randn(16, 8))
        loss.backward()
        optimizer.step()

    capture = capture_here(step)
    check(capture.planned)
    backward = [op for op in capture.planned.operations if op.phase is Phase.BACKWARD]
    assert not any("zeros" in op.name for op in backward)
    logits = [each for each in capture.planned.tensors if each.shape == (16, 1000)]
    assert any(not each.is_planned for each in logits)


def test_dropped_outputs_that_backward_needs_are_planned():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x):
            return self.layer(x).tanh()

    graph = capture_of(Net(), x=torch.randn(16, 8)).planned
    check(graph)
    (output,) = [
        graph.tensors[op.writes[0]] for op in graph.operations if op.name == "aten.tanh.default"
    ]
    reads = [op for op in graph.operations if output.index in op.reads]
    assert output.is_planned or output.released_after >= reads[-1].index


def test_the_gradient_of_an_output_dies_once_it_was_read():
    """The loop computes the loss; autograd holds on to nothing that it hands to a backward."""
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        output = net(torch.randn(4, 8))
        (output.exp().sum() + output.square().sum()).backward()
        optimizer.step()

    graph = capture_here(step).planned
    check(graph)
    last = max(op.index for op in graph.operations if op.phase is Phase.BACKWARD)
    piece = [op for op in graph.operations if op.phase is Phase.BACKWARD and op.piece >= 0]
    (given,) = {
        index
        for op in piece
        for index in op.reads
        if graph.operations[graph.tensors[index].producer].phase is Phase.BACKWARD
        and graph.operations[graph.tensors[index].producer].piece < 0
    }
    reads = [op.index for op in piece if given in op.reads]
    assert graph.tensors[given].released_after == reads[-1] < last


def test_checkpointed_calls_are_left_alone():
    net, other = mlp(), nn.Linear(4, 4)
    optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], lr=0.1)

    def step():
        optimizer.zero_grad()
        other(checkpoint(net, torch.randn(4, 8), use_reentrant=False)).sum().backward()
        optimizer.step()

    capture = capture_here(step)
    check(capture.planned)
    assert "saved-tensor hooks" in notes_of(capture)
    assert capture.planned.num_pieces == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch._inductor's own
def test_compiled_models_are_captured_all_the_same():
    net = mlp()
    capture = capture_of(torch.compile(net))
    assert capture.planned.num_pieces == 1
    net.compile()
    compiled_call = net._compiled_call_impl
    assert capture_of(net).planned.num_pieces == 1
    assert net._compiled_call_impl is compiled_call


def test_a_step_without_modules_says_so():
    weight = torch.randn(4, requires_grad=True)
    with pytest.raises(NothingCapturedError, match="the step calls no module"):
        capture_here(lambda: weight.square().sum().backward())
    assert weight.grad is None


def test_nothing_captured_names_the_reasons():
    net = mlp()

    def step():
        with torch.no_grad():
            net(torch.randn(2, 8))

    with pytest.raises(NothingCapturedError, match="runs without gradients"):
        capture_here(step)


def test_repeated_blocks_are_found():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

        def forward(self, x):
            return x + self.norm(self.linear(x).relu())

    net = nn.Sequential(nn.Linear(8, 8), nn.Sequential(*(Block() for _ in range(4))))
    assert capture_of(net).plain.blocks == ("1.0", "1.1", "1.2", "1.3")


def test_the_plain_peak_is_the_real_one():
    from torch.profiler import ProfilerActivity, profile

    net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Tanh())
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.randn(128, 64)
    step = training(net, optimizer, x)
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [
        event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    live = peak = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    graph = capture_here(step).plain
    opening = [tensor for tensor in graph.tensors if tensor.producer < 0]
    touched = {index for op in graph.operations for index in (*op.reads, *op.updates)}
    state = sum(tensor.num_bytes for tensor in opening if tensor.index in touched)
    assert peak_bytes(graph) - state == pytest.approx(peak, rel=0.02)


def test_a_script_is_captured_step_by_step():
    capture = StepCapture()
    done = []

    def on_boundary():
        if not done and capture.step_ends():
            done.append(capture.finish())

    finder = StepFinder(on_boundary, on_start=capture.start)
    finder.observer = capture
    with finder.watching():
        net = mlp()
        optimizer = torch.optim.Adam(net.parameters())
        late = nn.Linear(4, 4)
        optimizer.add_param_group({"params": list(late.parameters())})
        for _ in range(10):
            optimizer.zero_grad()
            late(net(torch.randn(4, 8))).sum().backward()
            optimizer.step()
            if done:
                break
    (result,) = done
    check(result.planned)
    assert result.planned.num_pieces == 2
    assert type(net[0].weight) is nn.Parameter
    assert not optimizer.state
