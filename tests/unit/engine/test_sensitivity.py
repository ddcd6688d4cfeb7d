"""How much gradients suffer from each tensor: measured in a bounded number of steps."""

import pytest

from legroom import ways
from legroom.engine._sensitivity import CoarseningProbe, measure_sensitivity
from legroom.plan import Adjustable

_COARSE = ways.get("integer2").error


def adjustables(count):
    return [
        Adjustable(
            (0, f"node{number}", 0), 1024 * (1 + number % 4), (number,), ("integer2", "integer8")
        )
        for number in range(count)
    ]


def measured(count, **options):
    """The sensitivities, where each tensor adds its own number, and how many runs it took."""
    found, runs = adjustables(count), []
    probe = CoarseningProbe(found)
    own = {each.place: 1.0 + each.numbers[0] for each in found}

    def error():
        runs.append(len(probe.chosen))
        return (0.01 + sum(own[place] * _COARSE**2 for place in probe.chosen)) ** 0.5

    return own, measure_sensitivity(found, probe, error, lambda *_: None, **options), runs


def test_each_tensor_gets_its_own_share():
    own, sensitivity, runs = measured(5)
    assert sensitivity == pytest.approx(own)
    assert runs == [0, 1, 1, 1, 1, 1]


def test_many_tensors_are_measured_together():
    own, sensitivity, runs = measured(100)
    assert len(runs) == 1 + 25  # groups of four
    assert sum(sensitivity.values()) == pytest.approx(sum(own.values()))


@pytest.mark.parametrize(("run_s", "num_runs"), [(0.1, 25), (9.0, 10), (1000.0, 6)])
def test_long_steps_are_measured_fewer_times(run_s, num_runs):
    own, sensitivity, runs = measured(100, run_s=run_s)
    assert len(runs) == 1 + num_runs
    assert sensitivity.keys() == own.keys()
