"""The gauge against the profile, and against peaks worked out by hand."""

import gc
import itertools
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import legroom
from legroom.meter import PeakGauge
from legroom.meter._profiler import profiler_is_running

CPU = torch.device("cpu")


def read(step):
    """What the gauge says of one step."""
    gauge = PeakGauge(CPU)
    assert gauge.start()
    step()
    reading = gauge.stop()
    assert reading is not None
    return reading


def multilayer():
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(128, 64)

    def step():
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()

    return step


def convolutions_in_place():
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 49, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step():
        optimizer.zero_grad(set_to_none=False)
        model(torch.randn(8, 3, 16, 16)).logsumexp(1).mean().backward()
        optimizer.step()

    return step


def embeddings():
    table, head = nn.Embedding(1000, 32), nn.Linear(32, 1000)
    optimizer = torch.optim.AdamW([*table.parameters(), *head.parameters()])
    tokens = torch.randint(1000, (4, 33))

    def step():
        optimizer.zero_grad()
        logits = head(table(tokens[:, :-1]))
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def accumulated():
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64), nn.Dropout(0.5))
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        for rows in (32, 96, 64):
            model(torch.randn(rows, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def with_deaths_from_before():
    """Every step lets go of what the one before left behind, the gradients included."""
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = {"activation": torch.randn(512, 64)}

    def step():
        hidden = model(kept.pop("activation").detach())
        optimizer.zero_grad()
        hidden.mean().backward()
        optimizer.step()
        kept["activation"] = torch.randn(512, 64) + hidden

    return step


STEPS = [multilayer, convolutions_in_place, embeddings, accumulated, with_deaths_from_before]


@pytest.mark.parametrize("make", STEPS)
def test_gauge_agrees_with_the_profile(make):
    step = make()
    gc.collect()
    profile = legroom.profile(step)
    gc.collect()
    reading = read(step)
    assert reading.peak_bytes == profile.peak_bytes
    assert reading.opening_bytes == profile.opening_bytes


def test_peak_worked_out_by_hand():
    floats = 1 << 18
    before = torch.empty(floats)
    gauge = PeakGauge(CPU)
    gc.collect()
    assert gauge.start()
    first = torch.empty(2 * floats)
    del before  # from before the start: its death is found
    second = torch.empty(4 * floats)
    del first
    third = torch.empty(floats)
    reading = gauge.stop()
    assert reading.peak_bytes - reading.opening_bytes == 4 * (2 - 1 + 4) * floats
    assert len(second) + len(third) == 5 * floats


def test_deaths_from_before_lower_the_peak():
    before = torch.empty(1 << 20)
    gauge = PeakGauge(CPU)
    gc.collect()
    assert gauge.start()
    del before
    torch.empty(1 << 20)
    reading = gauge.stop()
    assert reading.peak_bytes == reading.opening_bytes


def test_a_view_keeps_its_whole_storage():
    def step():
        view = torch.empty(1 << 20)[:1]
        torch.empty(1 << 10)
        return view

    reading = read(step)
    assert reading.peak_bytes - reading.opening_bytes == 4 * ((1 << 20) + (1 << 10))


def in_the_middle(model, optimizer, gauge):
    """Starts in the first call of a submodule, stops in the hook after the optimizer's step."""
    readings = []
    model[1].register_forward_pre_hook(lambda *_: gauge.start() and None)
    optimizer.register_step_post_hook(lambda *_: readings.append(gauge.stop()))
    return readings


def test_start_in_forward_and_stop_in_the_optimizer():
    width, batch = 64, 512
    model = nn.Sequential(nn.Linear(width, width), nn.Sigmoid(), nn.Linear(width, width))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    x = torch.randn(batch, width)
    weights = sum(p.nbytes for p in model.parameters())
    gauge = PeakGauge(CPU)
    readings = in_the_middle(model, optimizer, gauge)
    gc.collect()
    for _ in range(2):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    assert not gauge.is_active
    first, second = readings
    # The first step makes gradients and state; the second finds state. What is alive when it
    # starts, the activation and all it was made from, is counted.
    assert second.opening_bytes == first.opening_bytes + 2 * weights + 4 * 4
    # Inside backward: activation and gradient of the sigmoid, and gradients of the second layer.
    assert second.peak_bytes - second.opening_bytes >= 2 * x.nbytes
    assert second.peak_bytes - second.opening_bytes <= 4 * x.nbytes


def test_middle_of_a_step_peaks_as_the_whole():
    """The peak lies in backward, so it does not matter where in forward one starts."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(512, 64)

    def step():
        optimizer.zero_grad()
        model(x).pow(2).sum().backward()
        optimizer.step()

    whole = legroom.profile(step).peak_bytes
    readings = in_the_middle(model, optimizer, PeakGauge(CPU))
    gc.collect()
    step()
    assert readings[0].peak_bytes == whole


def test_compiled_code_runs_as_it_was_compiled():
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(128, 64)

    def step():
        optimizer.zero_grad()
        compiled(x).pow(2).mean().backward()
        optimizer.step()

    for _ in range(2):
        step()
    counted = dict(torch._dynamo.utils.counters["frames"])
    gc.collect()
    reading = read(step)
    assert dict(torch._dynamo.utils.counters["frames"]) == counted
    assert reading.peak_bytes == legroom.profile(step).peak_bytes
    torch._dynamo.reset()


def test_first_call_of_compiled_code_is_measured():
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))
    compiled = torch.compile(model, backend="aot_eager")
    x = torch.randn(128, 64)
    reading = read(lambda: compiled(x).pow(2).mean().backward())
    hidden = 128 * 256 * 4
    assert hidden < reading.peak_bytes - reading.opening_bytes < 8 * hidden
    torch._dynamo.reset()


def test_running_profiler_is_left_alone():
    gauge = PeakGauge(CPU)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        assert not gauge.start()
        torch.ones(8)
        assert gauge.stop() is None
        assert torch._C._autograd._profiler_enabled()
    assert "aten::ones" in {event.name for event in profiler.events()}


def test_profiler_within_the_stretch_takes_the_events():
    gauge = PeakGauge(CPU)
    assert gauge.start()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        torch.ones(8)
    assert gauge.stop() is None
    assert not torch._C._autograd._profiler_enabled()


def test_stop_without_start_says_nothing():
    assert PeakGauge(CPU).stop() is None


def test_stopping_twice_is_safe():
    gauge = PeakGauge(CPU)
    assert gauge.start()
    assert not gauge.start()
    assert gauge.stop() is not None
    assert gauge.stop() is None
    assert not torch._C._autograd._profiler_enabled()


def test_other_threads_do_not_stop_it():
    gauge, answers = PeakGauge(CPU), []
    assert gauge.start()
    thread = threading.Thread(target=lambda: answers.append(gauge.stop()))
    thread.start()
    thread.join()
    assert answers == [None]
    assert gauge.stop() is not None


def test_failing_start_leaves_nothing_on(monkeypatch):
    def fail():
        raise ZeroDivisionError

    monkeypatch.setattr("legroom.meter._peak.scan_heap", fail)
    gauge = PeakGauge(CPU)
    with pytest.raises(ZeroDivisionError):
        gauge.start()
    assert not gauge.is_active
    assert not torch._C._autograd._profiler_enabled()


def test_a_forgotten_gauge_is_in_nobodys_way():
    """A fitted model is thrown away in the middle of a measured step."""
    forgotten = PeakGauge(torch.device("cpu"))
    assert forgotten.start()
    del forgotten
    gc.collect()
    gauge = PeakGauge(torch.device("cpu"))
    assert gauge.start()
    assert gauge.stop() is not None
    assert not profiler_is_running()


def test_a_process_may_end_while_it_is_measured():
    """PyTorch crashes when a profiler is on at the end: see Note [Abandoned]."""
    script = (
        "import torch; from legroom.meter import PeakGauge; "
        "gauge = PeakGauge(torch.device('cpu')); assert gauge.start(); torch.ones(3).sum()"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert ended.returncode == 0
    assert b"callback" not in ended.stderr


def test_resident_growth_follows_what_was_touched():
    reading = read(lambda: torch.ones(64 * 2**20, dtype=torch.uint8))
    if reading.resident_bytes is None:
        pytest.skip("this system does not tell how far a process grew")
    assert 60 * 2**20 <= reading.resident_bytes <= 96 * 2**20


def test_resident_growth_is_none_where_nobody_tells(monkeypatch):
    monkeypatch.setattr("legroom.meter._peak.reset_highest", lambda: False)
    assert read(lambda: torch.ones(8)).resident_bytes is None


def test_training_is_not_changed_by_being_gauged():
    def losses(gauged):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.BatchNorm1d(32))
        optimizer = torch.optim.AdamW(model.parameters())
        seen = []
        for number in itertools.islice(itertools.count(), 3):
            gauge = PeakGauge(CPU)
            if gauged and number == 1:
                assert gauge.start()
            optimizer.zero_grad()
            loss = model(torch.randn(16, 8)).pow(2).mean()
            loss.backward()
            optimizer.step()
            gauge.stop()
            seen.append(loss.item())
        return seen, torch.get_rng_state().tolist()

    assert losses(False) == losses(True)
