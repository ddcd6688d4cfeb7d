"""The search of theme `reach`, and its table: functions of known answer stand in for planning."""

import pytest

from benchmarks import cases, reach, themes
from benchmarks.reach import MOST_TRIES, ROOM_BYTES, Search, search_and_confirm

MIB = 2**20
BUDGET = 1000 * MIB


def found_for(floor_of, *, base=8, run=None, may_go_on=lambda: True):
    def plan(value):
        return {"floor_bytes": floor_of(value), "state_bytes": floor_of(0)}

    def trained(value):
        return {"peak_bytes": floor_of(value)}

    return search_and_confirm(base, BUDGET, plan=plan, run=run or trained, may_go_on=may_go_on)


@pytest.mark.parametrize("base", [1, 6, 8, 256])
@pytest.mark.parametrize(
    "floor_of",
    [
        lambda value: (100 + 3 * value) * MIB,
        lambda value: (100 + 17 * value) * MIB,
        lambda value: (100 + value // 4 + value * value // 900) * MIB,
        lambda value: (100 + 64 * (value // 5)) * MIB,
    ],
)
def test_search_ends_within_its_tolerance(base, floor_of):
    if floor_of(base) > BUDGET - ROOM_BYTES:
        pytest.skip("the base does not fit")
    found = found_for(floor_of, base=base)
    largest = max(value for value in range(base, 4000) if floor_of(value) <= BUDGET - ROOM_BYTES)
    assert found["is_bracketed"]
    assert found["value"] == found["planned_value"]
    assert found["value"] <= largest < found["above"]
    assert found["above"] <= found["value"] + max(1, found["value"] // 8)
    assert len(found["planned"]) <= MOST_TRIES


def test_a_line_is_found_in_four_tries():
    assert len(found_for(lambda value: (100 + 10 * value) * MIB)["planned"]) <= 4


def test_no_value_is_tried_twice():
    planned = found_for(lambda value: (100 + value * value // 50) * MIB)["planned"]
    values = [each["value"] for each in planned]
    assert len(set(values)) == len(values)


def test_nothing_above_the_base_leaves_the_base():
    found = found_for(lambda value: (200 if value <= 8 else 2000) * MIB)
    assert (found["value"], found["above"]) == (8, 9)


def test_a_try_without_an_answer_ends_the_search_upwards():
    search = Search(8, BUDGET)
    search.tell(16, {"floor_bytes": 300 * MIB, "state_bytes": 100 * MIB})
    search.tell(32, {"error": "took more than 400 s"})
    assert search.is_open
    assert search.worst == 32
    value = search.next_value()
    assert value is not None
    assert 16 < value < 32


def test_what_training_refutes_is_lowered():
    def run(value):
        return {"peak_bytes": BUDGET + 1 if value > 80 else BUDGET}

    found = found_for(lambda value: (100 + 10 * value) * MIB, run=run)
    assert found["planned_value"] > 80
    assert found["value"] <= 80
    assert len(found["runs"]) > 1


def test_without_time_nothing_is_claimed():
    found = found_for(lambda value: value * MIB, may_go_on=lambda: False)
    assert found["value"] is None
    assert not found["is_bracketed"]


@pytest.mark.parametrize("what", reach.QUESTIONS)
def test_every_question_names_a_field_of_its_case(what):
    for name, field in reach.QUESTIONS[what].items():
        assert isinstance(getattr(cases.load(name).SIZES["small"], field), int)


def test_a_question_that_is_not_asked_is_not_measured():
    assert reach.measure_question("length", "disk", "resnet50") == {"not_asked": True}


def test_the_table_shows_factors_speed_and_the_literature():
    ran = {"peak_bytes": 100 * MIB, "processor_ms": 100.0, "step_ms": 200.0}
    confirmed = {
        "field": "batch",
        "base": 8,
        "plain": ran,
        "plain_above": {"value": 9, "peak_bytes": 110 * MIB},
        "planned_value": 40,
        "above": 44,
        "is_bracketed": True,
        "value": 40,
        "planned": [{"value": 40, "floor_bytes": 1}],
        "runs": [{"value": 40, "peak_bytes": 99 * MIB, "processor_ms": 1000.0, "step_ms": 1000.0}],
    }
    open_end = {
        **confirmed,
        "is_bracketed": False,
        "planned": [{"value": 44, "error": "took more than 400 s"}],
    }
    not_confirmed = {
        **confirmed,
        "value": None,
        "runs": [{"value": 40, "error": "took more than 700 s"}],
    }
    parts = {"batch bitwise": confirmed, "batch disk": open_end, "batch lossy": not_confirmed}
    about = dict.fromkeys(("date", "commit", "torch", "python", "machine", "command"), "x")
    rows = {"gpt2": {**parts, "depth disk": {"error": "it broke"}}}
    text = themes.get("reach").write_markdown({"about": about, "cases": rows})
    assert "| gpt2, `batch` | plain | 100.0 | 8 | 1.0 |  | 9 (110.0 MiB) | 100.0 |" in text
    assert "| gpt2 | bitwise | 100.0 | 40 | 5.0 | 40 | 44 | 99.0 | 0.50 | 1.00 | 1 |" in text
    assert "at least 40 | 5.0 | at least 40 | 44: took more than 400 s" in text
    assert "| gpt2 | lossy | 100.0 | – | – | 40 | 44 | took more than 700 s |" in text
    assert "504 to 1916 layers" in text
    assert "it broke" in text
    assert "Not run: batch of bert (bitwise, disk, lossy); " in text
    assert "depth of gpt2 (bitwise, lossy)" in text
