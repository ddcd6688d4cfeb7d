"""A clock that the operation itself moves: no test here depends on how fast anything is."""

import pytest
import torch

from legroom.capture import signature_of
from legroom.errors import UsageError
from legroom.meter import _stopwatch
from legroom.meter._costs import cost_of
from legroom.meter._stopwatch import Call, time_round

CPU = torch.device("cpu")
aten = torch.ops.aten


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now_ns = waited_ns = 0

    monkeypatch.setattr(_stopwatch.time, "perf_counter_ns", lambda: Clock.now_ns)
    monkeypatch.setattr(_stopwatch, "_waited_ns", lambda: Clock.waited_ns)
    return Clock


def made_up_call(clock, durations_ms, *, num_sets=1):
    """A call whose runs take the given times, the last of them for ever after."""
    runs = []

    def operation(number):
        runs.append(number)
        clock.now_ns += int(durations_ms[min(len(runs), len(durations_ms)) - 1] * 1e6)

    sets = tuple(([number], {}) for number in range(num_sets))
    return Call("made_up", operation, sets, CPU), runs


def call_of(func, *args):
    signature = signature_of(func, args)
    return Call.of(signature, cost_of(signature), CPU)


def test_the_first_run_does_not_count(clock):
    call, _ = made_up_call(clock, [100, 7])
    assert time_round(call) == 7


def test_a_slow_moment_does_not_count(clock):
    call, _ = made_up_call(clock, [5, 5, 5, 90, 5])
    assert time_round(call) == 5


def test_a_cheap_operation_runs_often(clock):
    call, runs = made_up_call(clock, [0.01])
    time_round(call)
    assert len(runs) == 1 + 48


def test_a_dear_operation_runs_twice(clock):
    call, runs = made_up_call(clock, [500])
    assert time_round(call) == 500
    assert len(runs) == 2


def test_all_sets_take_turns(clock):
    call, runs = made_up_call(clock, [4], num_sets=3)
    time_round(call)
    assert runs[:6] == [0, 1, 2, 0, 1, 2]


def test_small_inputs_have_several_sets():
    call = call_of(aten.relu.default, torch.empty(16))
    assert len(call.sets) == 8
    assert len({args[0].data_ptr() for args, _ in call.sets}) == 8


def test_large_inputs_have_one_set():
    call = call_of(aten.relu.default, torch.empty(12 * 2**20, dtype=torch.uint8))
    assert len(call.sets) == 2
    assert len(call_of(aten.relu.default, torch.empty(9 * 2**20)).sets) == 1


def test_a_small_input_with_a_large_output_counts_both():
    call = call_of(aten.repeat.default, torch.empty(1024), [10_000])
    assert len(call.sets) == 1
    assert call.is_fresh


def test_copies_keep_strides_and_values():
    tensors = [torch.empty(4, 6).t(), torch.empty(3, 1).expand(3, 5), torch.empty(0)]
    call = call_of(aten.cat.default, tensors)
    (first, _), (second, _), *_ = call.sets
    for one, other in zip(first[0], second[0], strict=True):
        assert one.stride() == other.stride()
        assert torch.equal(one, other)


def test_a_large_output_is_new_memory_each_time(monkeypatch):
    released = []
    monkeypatch.setattr(_stopwatch, "release_free_heap", lambda: released.append(1))
    call = Call("made_up", lambda: None, (([], {}),), CPU, is_fresh=True)
    time_round(call)
    assert len(released) == 1 + 48


def test_waiting_for_a_processor_does_not_count(clock):
    def operation():
        clock.now_ns += 10_000_000
        clock.waited_ns += 4_000_000

    assert time_round(Call("made_up", operation, (([], {}),), CPU)) == 6


def test_waiting_is_none_where_proc_is_closed(monkeypatch):
    def closed(*args, **kwargs):
        raise OSError("closed")

    monkeypatch.setattr("builtins.open", closed)
    assert _stopwatch._waited_ns() == 0


def test_roots_are_taken_of_positive_numbers():
    call = call_of(aten.sqrt.default, torch.empty(4, 6).t())
    assert all((args[0] >= 0).all() for args, _ in call.sets)


def test_what_does_more_than_compute_is_not_run():
    with pytest.raises(UsageError, match=r"does more than compute, so it is not run on its own"):
        call_of(torch.ops.profiler._record_function_enter_new.default, "name")


def test_what_trusts_its_numbers_is_not_run():
    scores, alphas = torch.empty(12, 2, 5), torch.empty(2, 12, 7)
    targets, lengths = torch.empty(2, 4).long(), torch.empty(2).long()
    with pytest.raises(UsageError, match=r"not safe to run with numbers that were made up"):
        call_of(
            aten._ctc_loss_backward.Tensor,
            *(torch.empty(2), scores, targets, lengths, lengths, torch.empty(2), alphas, 0),
        )
