import re

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.capture import signature_of
from legroom.meter import OperationTimes, _operation_times, _stopwatch, _time_cache
from legroom.meter._costs import cost_of
from legroom.meter._operation_times import achieved_rates

aten = torch.ops.aten
RELU = signature_of(aten.relu.default, (torch.empty(8, 4),))
TANH = signature_of(aten.tanh.default, (torch.empty(8, 4),))
MATMUL = signature_of(aten.mm.default, (torch.empty(8, 4), torch.empty(4, 2)))
DROPOUT = signature_of(aten.native_dropout.default, (torch.empty(8, 4), 0.5, True))
# Inner sizes that do not agree: cannot be run, and no fake run either.
WRONG = signature_of(aten.mm.default, (torch.empty(8, 4), torch.empty(5, 2)))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LEGROOM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "operation_times"


@pytest.fixture
def rounds(monkeypatch):
    """Names of the operations that were timed, each of which then takes 2 ms."""
    timed = []

    def time_round(call):
        timed.append(call.name)
        call.run()
        return 2.0

    monkeypatch.setattr(_operation_times, "time_round", time_round)
    return timed


def test_each_distinct_signature_is_measured_once(rounds):
    times = OperationTimes().measure([RELU, MATMUL, RELU, RELU])
    assert list(times) == [RELU, MATMUL]
    assert sorted(rounds) == ["mm", "mm", "relu", "relu"]  # two rounds
    assert all(time.is_measured for time in times.values())


def test_a_real_measurement_takes_time():
    times = OperationTimes().measure([RELU, MATMUL])
    assert all(time.is_measured and time.ms > 0 for time in times.values())


def test_the_quieter_round_counts(monkeypatch):
    answers = iter([3.0, 1.0])
    monkeypatch.setattr(_operation_times, "time_round", lambda call: next(answers))
    assert OperationTimes().measure([RELU])[RELU].ms == 1.0
    assert OperationTimes().measure([RELU])[RELU].ms == 1.0  # from the cache


def test_a_long_operation_has_one_round(monkeypatch):
    answers = iter([500.0])
    monkeypatch.setattr(_operation_times, "time_round", lambda call: next(answers))
    assert OperationTimes().measure([RELU])[RELU].ms == 500.0


def test_what_is_cached_is_not_measured_again(rounds):
    first = OperationTimes().measure([RELU])
    rounds.clear()
    assert OperationTimes().measure([RELU]) == first
    assert rounds == []


def test_without_the_cache_nothing_is_written(rounds, cache):
    OperationTimes(is_cached=False).measure([RELU])
    OperationTimes(is_cached=False).measure([RELU])
    assert len(rounds) == 4
    assert not cache.exists()


def test_times_with_other_threads_are_not_used(rounds):
    OperationTimes().measure([RELU])
    torch.set_num_threads(2)
    rounds.clear()
    OperationTimes().measure([RELU])
    assert rounds == ["relu", "relu"]


def test_times_of_another_torch_are_not_used(rounds, monkeypatch):
    OperationTimes().measure([RELU])
    monkeypatch.setattr(torch, "__version__", "2.14.0")
    rounds.clear()
    OperationTimes().measure([RELU])
    assert rounds == ["relu", "relu"]


def test_a_corrupt_cache_is_mended(rounds, cache):
    OperationTimes().measure([RELU, TANH])
    (file,) = cache.iterdir()
    good = [line for line in file.read_bytes().splitlines() if b"tanh" not in line]
    bad = [b"\xff\x00 not json", b'{"signature": "x"}', b'{"sig', b""]
    file.write_bytes(b"\n".join([*good, *bad]))
    rounds.clear()
    times = OperationTimes()
    assert times.measure([RELU, TANH])[RELU].ms == 2.0
    assert rounds == ["tanh", "tanh"]
    assert re.search(r"what could not be read was left out \(lines: 3\)", times.notes[0])
    again = OperationTimes()
    again.measure([RELU, TANH])
    assert again.notes == []


def test_a_cache_folder_that_is_a_file_is_noted(rounds, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LEGROOM_CACHE_DIR", str(tmp_path / "file"))
    times = OperationTimes()
    assert times.measure([RELU])[RELU].is_measured
    assert re.search(r"not kept for the next run: .*LEGROOM_CACHE_DIR", times.notes[0])


def test_a_cache_that_cannot_be_written_is_noted(rounds, monkeypatch):
    def closed(*args, **kwargs):
        raise PermissionError(13, "Permission denied", "times.jsonl")

    monkeypatch.setattr(_time_cache.os, "open", closed)
    times = OperationTimes()
    assert times.measure([RELU])[RELU].is_measured
    assert re.search(r"not kept for the next run: .*Permission denied", times.notes[0])


def test_ctrl_c_keeps_what_was_measured(monkeypatch, rounds):
    def interrupt(stage, done, total):
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        OperationTimes().measure([RELU, TANH], on_progress=interrupt)
    assert len(rounds) == 1
    done = list(rounds)
    OperationTimes().measure([RELU, TANH])
    assert done[0] not in rounds[1:]


def test_progress_counts_every_visit(rounds):
    seen = []
    OperationTimes().measure([RELU, TANH], on_progress=lambda *item: seen.append(item))
    assert seen == [("timing operations", done, 4) for done in range(1, 5)]


@pytest.mark.parametrize(
    ("signature", "reason"),
    [
        (WRONG, r"'mm' is modelled, not measured: RuntimeError: .*shapes"),
        (
            '["aten.no_such_operation.default",[],{}]',
            r"'no_such_operation' is modelled.*UsageError",
        ),
        ("", r"'' is modelled, not measured: UsageError"),
    ],
)
def test_what_cannot_run_is_modelled(signature, reason):
    times = OperationTimes()
    time = times.measure([signature])[signature]
    assert not time.is_measured
    assert time.ms > 0
    assert re.search(reason, times.notes[0])


def test_what_is_modelled_is_not_cached(rounds):
    OperationTimes(limit_bytes=1).measure([RELU])
    assert OperationTimes().measure([RELU])[RELU].is_measured


def test_what_exceeds_the_limit_is_not_run(rounds):
    times = OperationTimes(limit_bytes=200)
    result = times.measure([RELU, MATMUL])  # 256 and 224 bytes
    assert rounds == []
    assert not any(time.is_measured for time in result.values())
    assert times.notes == [
        "the time of 'mm' is modelled, not measured: it needs 224 B, and the limit is 200 B",
        "the time of 'relu' is modelled, not measured: it needs 256 B, and the limit is 200 B",
    ]


def test_shapes_of_one_operation_share_a_note(rounds):
    larger = signature_of(aten.relu.default, (torch.empty(16, 4),))
    times = OperationTimes(limit_bytes=1)
    times.measure([RELU, larger])
    assert len(times.notes) == 1
    assert times.notes[0].endswith(", and 1 more")


def test_failing_in_the_second_round_keeps_the_first(monkeypatch):
    answers = iter([2.0])

    def time_round(call):
        for answer in answers:
            return answer
        raise MemoryError("no more")

    monkeypatch.setattr(_operation_times, "time_round", time_round)
    times = OperationTimes()
    assert times.measure([RELU])[RELU].is_measured
    assert times.notes == []


def test_random_numbers_stay_as_they_were():
    before = torch.get_rng_state()
    OperationTimes().measure([DROPOUT])
    assert torch.equal(torch.get_rng_state(), before)


def test_modes_around_do_not_see_the_runs():
    class Everything(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen += 1
            return func(*args, **(kwargs or {}))

    with Everything() as mode, torch.autocast("cpu", dtype=torch.bfloat16):
        time = OperationTimes().measure([MATMUL])[MATMUL]
    assert time.is_measured
    assert mode.seen == 0


def test_rates_follow_what_was_measured(rounds):
    big = torch.empty(1024, 1024)
    matmul = signature_of(aten.mm.default, (big, big))
    relu = signature_of(aten.relu.default, (big,))
    times = OperationTimes(is_cached=False).measure([matmul, relu, RELU])
    rates = achieved_rates(times, torch.device("cpu"))
    assert rates.flops_per_s == pytest.approx(2 * 1024**3 / 2e-3)
    assert rates.bytes_per_s == pytest.approx(2 * 4 * 1024**2 / 2e-3)
    assert rates.launch_ms == 2.0


def test_workspace_of_a_convolution_backward_is_kept(rounds):
    image, weight = torch.empty(2, 8, 16, 16), torch.empty(8, 8, 3, 3)
    ones, zeros = [1, 1], [0, 0]
    conv = signature_of(
        aten.convolution_backward.default,
        (image, image, weight, [8], ones, ones, ones, False, zeros, 1, [True, True, True]),
    )
    first = OperationTimes().measure([conv, RELU])
    assert first[conv].workspace_bytes > 0
    assert first[RELU].workspace_bytes == 0
    assert OperationTimes().measure([conv, RELU]) == first


def test_a_gradient_that_nobody_wants_is_workspace():
    """Of a frozen convolution with a bias that is trained: oneDNN computes both gradients."""
    image, weight = torch.randn(2, 8, 16, 16), torch.randn(8, 8, 3, 3)
    ones, zeros = [1, 1], [0, 0]
    shared = (image, image, weight, [8], ones, ones, ones, False, zeros, 1)
    workspace = []
    for wanted in (True, False):
        args = (*shared, [False, wanted, True])
        signature = signature_of(aten.convolution_backward.default, args)
        call = _stopwatch.Call.of(signature, cost_of(signature), torch.device("cpu"))
        workspace.append(_stopwatch.measure_workspace(call))
    assert workspace[1] == workspace[0] + weight.untyped_storage().nbytes()


def test_workspace_is_what_does_not_remain():
    def operation():
        scratch = torch.zeros(1000, dtype=torch.uint8)
        return scratch[:10].clone()

    call = _stopwatch.Call("conv", operation, (([], {}),), torch.device("cpu"))
    assert _stopwatch.measure_workspace(call) == 1000


def test_garbage_is_not_collected_meanwhile():
    def run():
        ring = [torch.empty(500)]
        ring.append(ring)
        del ring
        assert all(each == [] for each in [[] for _ in range(100_000)])  # many, so that it is due
        return torch.empty(250)

    call = _stopwatch.Call("made_up", run, (([], {}),), torch.device("cpu"))
    assert _stopwatch.measure_workspace(call) == 0


def test_workspace_is_left_alone_under_a_profiler():
    call = _stopwatch.Call("conv", lambda: torch.ones(3), (([], {}),), torch.device("cpu"))
    with torch.autograd.profiler.profile():
        assert _stopwatch.measure_workspace(call) == 0
