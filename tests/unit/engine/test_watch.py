"""When steps are measured, and when that must wait."""

import torch
from torch import nn

from legroom.engine._watch import StepEnds, StepWatch
from legroom.engine.graph import guard


def watch_of(readings):
    watch = StepWatch(torch.device("cpu"))
    begin = lambda: watch.call_begins("a plan", readings.append)  # noqa: E731
    return watch, begin


def test_three_steps_of_a_plan_are_measured():
    readings = []
    watch, begin = watch_of(readings)
    for _ in range(5):
        begin()
        torch.ones(1000)
        watch.step_ends()
    assert len(readings) == 3
    assert all(reading.peak_bytes >= reading.opening_bytes + 4000 for reading in readings)


def test_a_closed_watch_starts_no_profiler_before_the_step_has_ended():
    """A scope that began under the first profiler must not end under a second one."""
    readings = []
    watch, begin = watch_of(readings)
    begin()
    with torch.autograd.profiler.record_function("as DDP's forward"):
        watch.close()
        begin()
        assert not torch._C._autograd._profiler_enabled()
    watch.step_ends()
    assert not readings
    begin()
    assert torch._C._autograd._profiler_enabled()
    watch.step_ends()
    assert len(readings) == 1


def test_steps_of_planning_end_no_step():
    watch = StepWatch(torch.device("cpu"))
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    ends = StepEnds(watch, [optimizer])
    guard.is_planning = True
    try:
        optimizer.step()
        assert watch.num_steps == 0
    finally:
        guard.is_planning = False
    optimizer.step()
    assert watch.num_steps == 1
    ends.close()
