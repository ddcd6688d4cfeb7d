"""Theme `growth`: exponents between sizes, and the sentence that they come to."""

import pytest

from benchmarks import themes
from benchmarks.themes._growth import STAGES, conclusion_of, exponent_of


def row(num_layers, seconds):
    return {
        "num_layers": num_layers,
        "num_operations": 100 * num_layers,
        "num_tensors": 90 * num_layers,
        "seconds": {**dict.fromkeys(STAGES, 0.1), "capture": seconds},
        "grown_bytes": {**dict.fromkeys(STAGES, 2**20), "plan": None},
        "timed_out": False,
        "plain_ms": 10.0,
        "fitted_ms": 13.0,
        "added_ms": 1.0,
        "executor_ms": 1.5,
    }


def test_exponent_is_that_of_a_power():
    assert exponent_of((10, 5.0), (20, 20.0)) == pytest.approx(2.0)
    assert exponent_of((10, 5.0), (20, 10.0)) == pytest.approx(1.0)
    assert exponent_of((10, 0.0), (20, 10.0)) is None


def test_conclusion_says_where_growth_is_not_linear():
    linear = [row(6, 10.0), row(12, 20.0)]
    assert conclusion_of(linear).endswith("grows linearly up to 12 layers.")
    steep = conclusion_of([*linear, row(24, 80.0)])
    assert steep == "Steeper than linear (exponent above 1.2): capture from 12 to 24 layers (2.0)."
    assert conclusion_of(linear[:1]) == "Nothing to compare."


def test_a_stage_that_takes_no_time_is_not_judged():
    assert "linearly" in conclusion_of([row(6, 0.01), row(12, 0.5)])


def test_the_tables_show_time_steps_memory_and_what_is_missing():
    about = dict.fromkeys(("date", "commit", "torch", "python", "machine", "command"), "x")
    singles = {"6 layers": row(6, 10.0), "12 layers": row(12, 40.0), "24 layers": {"error": "late"}}
    text = themes.get("growth").write_markdown({"about": about, "cases": {}, "singles": singles})
    assert "| 12 | 1200 | 1080 | 40.0 (2.0) | 0.1 (0.0) |" in text
    assert "| 12 | 10.0 | 13.0 | 1.0 | 2.0 | 1.7 | 1.5 |" in text
    assert "| 6 | 1.0 | 1.0 | – |" in text
    assert "| 24 layers | late |" in text
    assert "Not run: 48 layers, 96 layers." in text
