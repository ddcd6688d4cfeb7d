"""What `legroom.profile(step)` says of small models whose numbers can be worked out by hand."""

import contextlib
import gc
import inspect
import sys
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import legroom
from legroom.errors import UsageError
from legroom.meter import Kind

BATCH, WIDTH, HIDDEN = 256, 64, 512


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, HIDDEN)
        self.second = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        hidden = self.first(x)
        active = F.gelu(hidden)  # line of gelu
        return self.second(active)


LINE_OF_GELU = next(
    number
    for number, text in enumerate(inspect.getsource(sys.modules[__name__]).splitlines(), start=1)
    if text.endswith("# line of gelu")
)


def training(net, optimizer_class=torch.optim.Adam):
    optimizer = optimizer_class(net.parameters())
    x = torch.randn(BATCH, WIDTH)

    def step():
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        optimizer.step()

    return step


@pytest.fixture(scope="module")
def profiled():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    gc.collect()
    return legroom.profile(training(Net()))


def tensors(profile, **wanted):
    return [
        tensor
        for tensor in profile.tensors
        if all(getattr(tensor, key) == value for key, value in wanted.items())
    ]


def test_state_is_counted_to_the_byte(profiled):
    weights = 4 * (WIDTH * HIDDEN + HIDDEN + HIDDEN * WIDTH + WIDTH)
    ours = [t for t in profiled.tensors if t.name.startswith(("first.", "second."))]
    by_kind = {
        kind: sum(t.bytes for t in ours if t.kind == kind)
        for kind in ("weights", "optimizer_state")
    }
    assert by_kind == {"weights": weights, "optimizer_state": 2 * weights + 4 * 4}


def test_gelu_keeps_its_input_and_the_next_linear_its_output(profiled):
    stash = tensors(profiled, kind="stash", bytes=4 * BATCH * HIDDEN)
    kept = {(t.operation, t.kept_by[0].operation, t.kept_by[0].field) for t in stash}
    assert kept == {("linear", "gelu", "self"), ("gelu", "addmm", "mat1")}
    why = next(t.kept_by[0].why for t in stash if t.operation == "linear")
    assert why == "gelu needs its input for its gradient"


def test_tensors_know_their_line_and_module(profiled):
    (output,) = tensors(profiled, kind="stash", operation="gelu")
    assert output.file.endswith("test_profile_of_callable.py")
    assert (output.line, output.module, output.shape) == (LINE_OF_GELU, "Net", (BATCH, HIDDEN))


def test_backward_time_and_bytes_belong_to_the_forward_line(profiled):
    (line,) = [use for use in profiled.lines if use.line == LINE_OF_GELU]
    assert line.forward_ms > 0
    assert line.backward_ms > 0
    gradients = [
        t for t in tensors(profiled, line=LINE_OF_GELU) if t.kind == "temporaries_backward"
    ]
    assert sum(t.bytes for t in gradients) == 4 * BATCH * HIDDEN


def test_the_books_balance_at_every_moment(profiled):
    assert list(profiled.kinds) == [kind.value for kind in Kind]
    assert sum(profiled.kinds.values()) == profiled.peak_bytes
    assert max(m.total_bytes for m in profiled.timeline) == profiled.peak_bytes
    assert all(sum(m.kinds.values()) == m.total_bytes for m in profiled.timeline)


def test_what_is_alive_at_the_peak_adds_up_to_it(profiled):
    assert sum(t.bytes for t in profiled.tensors if t.at_peak) == profiled.peak_bytes


def test_lines_and_modules_add_up_to_what_has_a_place(profiled):
    placed = sum(t.bytes for t in profiled.tensors if t.at_peak and t.file)
    assert sum(use.peak_bytes for use in profiled.lines) == placed
    assert sum(use.peak_bytes for use in profiled.modules) == profiled.peak_bytes


def test_phases_follow_one_another_without_gaps(profiled):
    names = [span.phase for span in profiled.phases]
    assert names == ["other", "forward", "loss", "backward", "optimizer", "other"]
    for before, after in zip(profiled.phases, profiled.phases[1:], strict=False):
        assert before.end_ms == after.start_ms
    assert profiled.phases[-1].end_ms == profiled.profiled_ms
    assert max(span.peak_bytes for span in profiled.phases) == profiled.peak_bytes


def test_everything_has_a_line_or_module(profiled):
    assert profiled.coverage.stash_share == 1.0


def test_times_of_lines_do_not_exceed_the_step(profiled):
    total = sum(u.forward_ms + u.backward_ms + u.optimizer_ms for u in profiled.lines)
    assert total <= profiled.profiled_ms * 1.001


def test_training_is_not_changed_by_being_recorded():
    def losses(recorded):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.BatchNorm1d(32), nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(net.parameters())
        seen = []

        def step():
            optimizer.zero_grad()
            loss = net(torch.randn(16, 8)).pow(2).mean()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())

        if recorded:
            legroom.profile(step, steps=2, warmup=2)
        else:
            for _ in range(4):
                step()
        return seen, [p.detach().clone() for p in net.parameters()], torch.get_rng_state()

    plain, watched = losses(False), losses(True)
    assert plain[0] == watched[0]
    assert all(map(torch.equal, plain[1], watched[1]))
    assert torch.equal(plain[2], watched[2])


def test_several_steps_report_the_highest():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    sizes = iter([8, 8, 64, 256, 64])

    def step():
        optimizer.zero_grad()
        net(torch.randn(next(sizes), WIDTH)).pow(2).mean().backward()
        optimizer.step()

    profile = legroom.profile(step, steps=3)
    peaks = [each.peak_bytes for each in profile.steps]
    assert len(peaks) == 3
    assert profile.peak_bytes == max(peaks) == peaks[1]
    assert sum(profile.kinds.values()) == profile.peak_bytes


def test_a_storage_shared_by_views_is_counted_once():
    weight = nn.Parameter(torch.randn(64, 64))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step():
        optimizer.zero_grad()
        wide = weight.exp()
        halves = wide[:32], wide[32:]
        (halves[0].sin() + halves[1].cos()).sum().backward()
        optimizer.step()

    profile = legroom.profile(step)
    (wide,) = [t for t in profile.tensors if t.kernel == "exp" and t.bytes == 4 * 64 * 64]
    assert {keep.operation for keep in wide.kept_by} == {"exp", "sin", "cos"}


def test_weights_used_twice_are_counted_once():
    net = Net()
    net.second.weight = nn.Parameter(net.first.weight.detach().t().contiguous())
    tied = nn.Linear(WIDTH, WIDTH)
    twice = nn.Sequential(tied, nn.ReLU(), tied)
    profile = legroom.profile(training(twice))
    ours = tensors(profile, name="0.weight")
    assert [t.bytes for t in ours] == [4 * WIDTH * WIDTH]


def test_what_a_library_costs_is_on_the_users_line_too():
    from transformers.activations import NewGELUActivation

    first, activation = nn.Linear(WIDTH, HIDDEN), NewGELUActivation()
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    x = torch.randn(BATCH, WIDTH)

    def step():
        optimizer.zero_grad()
        hidden = first(x)
        activation(hidden).mean().backward()
        optimizer.step()

    profile = legroom.profile(step)
    library = [use for use in profile.lines if not use.is_user]
    callers = [use for use in profile.lines if use.called_peak_bytes]
    assert {use.file for use in library} == {"transformers/activations.py"}
    (caller,) = callers
    assert caller.is_user
    assert caller.function == "step"
    assert caller.called_stash_bytes == sum(use.stash_bytes for use in library) > 0
    assert caller.called_peak_bytes == sum(use.peak_bytes for use in library)
    spent = sum(use.forward_ms + use.backward_ms for use in library)
    assert caller.called_ms == pytest.approx(spent, abs=1e-3)


def test_modules_called_on_their_own_keep_their_names():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(BATCH, WIDTH)

    def step():
        optimizer.zero_grad()
        net.second(net.first(x).relu()).mean().backward()
        optimizer.step()

    profile = legroom.profile(step)
    assert {"first", "second"} <= {use.path for use in profile.modules}
    assert tensors(profile, name="first.weight", kind="weights")


def test_what_precedes_the_first_module_is_stash():
    weight, net = nn.Parameter(torch.randn(WIDTH, WIDTH)), Net()
    optimizer = torch.optim.SGD([weight, *net.parameters()], lr=0.1)
    x = torch.randn(BATCH, WIDTH)

    def step():
        optimizer.zero_grad()
        net(torch.tanh(x @ weight)).mean().backward()
        optimizer.step()

    (activation,) = [t for t in legroom.profile(step).tensors if t.kernel == "tanh"]
    assert activation.kind == "stash"


def test_nothing_stays_installed():
    def state():
        from torch.nn.modules import module
        from torch.optim import optimizer

        return (
            len(module._global_forward_hooks),
            len(module._global_forward_pre_hooks),
            len(optimizer._global_optimizer_post_hooks),
            torch.autograd._engine_run_backward,
            torch.Tensor.backward,
            list(torch.overrides._get_current_function_mode_stack()),
            torch._C._autograd._profiler_enabled(),
        )

    before = state()
    legroom.profile(training(Net()))
    assert state() == before
    with pytest.raises(ZeroDivisionError):
        legroom.profile(lambda: 1 / 0, warmup=0)
    assert state() == before


def test_models_are_not_kept_alive():
    net = Net()
    gone = weakref.ref(net)
    legroom.profile(training(net))
    del net
    gc.collect()
    assert gone() is None


def test_a_step_that_fails_raises_its_own_error():
    calls = []

    def step():
        calls.append(1)
        if len(calls) == 3:
            raise ValueError("bad batch")
        torch.ones(1, requires_grad=True).sum().backward()

    with pytest.raises(ValueError, match="bad batch"):
        legroom.profile(step)
    assert not torch._C._autograd._profiler_enabled()


def test_numpy_memory_is_reported_beside_the_books():
    numpy = pytest.importorskip("numpy")
    array = torch.from_numpy(numpy.zeros((65_536, 64), dtype="float32"))
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        net(array).pow(2).mean().backward()
        optimizer.step()

    profile = legroom.profile(step)
    (limit,) = [limit for limit in profile.limits if limit.name == "memory of others"]
    assert limit.bytes >= 65_536 * 64 * 4
    assert not tensors(profile, shape=(65_536, 64), kind="inputs")


def test_compiled_code_is_measured_and_its_limit_said():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(net, backend="aot_eager")
        x = torch.randn(BATCH, WIDTH)

        def step():
            optimizer.zero_grad()
            compiled(x).pow(2).mean().backward()
            optimizer.step()

        profile = legroom.profile(step)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    assert "compiled" in {limit.name for limit in profile.limits}
    assert profile.kinds["stash"] >= 2 * 4 * BATCH * HIDDEN
    assert {span.phase for span in profile.phases} >= {"forward", "backward", "optimizer"}


def test_module_hooks_of_the_user_that_raise_do_not_confuse():
    net = Net()
    step = training(net)
    attempts = []

    def failing(module, args, output):
        attempts.append(1)
        if len(attempts) == 3:
            raise RuntimeError("hook")

    net.first.register_forward_hook(failing)

    def forgiving():
        with contextlib.suppress(RuntimeError):
            step()

    profile = legroom.profile(forgiving, steps=2)
    assert sum(profile.kinds.values()) == profile.peak_bytes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"warmup": -1}, "warm-up must be at least 0 steps, got -1"),
    ],
)
def test_counts_out_of_range_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        legroom.profile(lambda: None, **arguments)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(UsageError, match="step must be callable without arguments, got int"):
        legroom.profile(3)


def test_a_second_profiler_is_refused():
    with torch.profiler.profile():
        with pytest.raises(UsageError, match="a torch profiler is already running"):
            legroom.profile(lambda: None)


def test_progress_is_told_stage_by_stage():
    seen = []
    legroom.profile(training(Net()), on_progress=lambda *args: seen.append(args))
    assert seen == [
        ("warm-up", 0, 2), ("warm-up", 1, 2), ("warm-up", 2, 2), ("recording", 0, 1),
        ("recording", 1, 1), ("balancing the books", 0, 1), ("balancing the books", 1, 1),
    ]  # fmt: skip
