"""The themes of the benchmarks: every part has somebody who measures it; failures become rows."""

import importlib

import pytest

from benchmarks import themes
from benchmarks.processes import answer_of
from benchmarks.run import merged

ABOUT = {
    "date": "2026-01-01",
    "commit": "abc",
    "command": "python -m benchmarks.run",
    "torch": "2",
    "python": "3",
    "machine": "none",
}


@pytest.mark.parametrize("name", themes.names())
def test_failed_parts_become_rows(name: str) -> None:
    theme = themes.get(name)
    failed = {"error": "ValueError: it broke"}
    result = {
        "about": {**ABOUT, **theme.about},
        "cases": {"gpt2": dict.fromkeys(theme.case_parts, failed)},
        "singles": dict.fromkeys(theme.single_parts, failed),
    }
    text = theme.write_markdown(result)
    assert "ValueError: it broke" in text
    for line in text.splitlines():
        assert not line.startswith("|") or line.endswith(" |")


@pytest.mark.parametrize("name", themes.names())
def test_theme_names_a_module_that_runs(name: str) -> None:
    module = importlib.import_module(themes.get(name).module)
    assert module.__file__ is not None


def test_dead_process_becomes_an_error() -> None:
    answer = answer_of("benchmarks.plan", "no-such-case", "levels")
    assert answer["error"].startswith("UnknownCaseError: unknown case 'no-such-case'")
    assert "No module named" in answer_of("benchmarks.nothing")["error"]


def test_a_theme_may_be_measured_in_part():
    theme = themes.get("move")
    assert theme.only(None) is theme
    some = theme.only(["soak", "floor"])
    assert (some.case_parts, some.single_parts) == (("floor",), ("soak",))


def test_a_result_can_be_added_to():
    old = {"about": ABOUT, "cases": {"gpt2": {"a": 1, "b": 1}}, "singles": {"x": 1}}
    new = {"about": {**ABOUT, "commit": "def"}, "cases": {"gpt2": {"b": 2}, "vit": {"b": 2}}}
    both = merged(old, new)
    assert both["about"]["commit"] == "abc; def"
    assert both["about"]["command"] == ABOUT["command"]
    assert both["cases"] == {"gpt2": {"a": 1, "b": 2}, "vit": {"b": 2}}
    assert both["singles"] == {"x": 1}


def test_the_engine_theme_shows_every_part_and_what_failed():
    ran = {
        "level": "50%",
        "status": "ran",
        "num_compared": 9,
        "num_different": 0,
        "first_different": [],
        "loss_off": 1e-7,
        "to_second_step_s": 3.0,
        "budget_bytes": 2**20,
        "predicted_peak_bytes": 2**20,
        "measured_peak_bytes": 2**20,
        "replans": 0,
        "planning_s": 1.0,
    }
    below = {"level": "25%", "status": "below floor", "floor_bytes": 2**20}
    times = {"plain": [10.0, 11.0, 12.0], "free": [10.0, 11.0, 12.0], "whole": [9.0, 11.0, 13.0]}
    speed = {
        "times_ms": times,
        "peaks": {"plain": 2**20},
        "reports": {},
        "stash": {"plain": 2**20, "free": 2**19},
    }
    budget_row = {
        "subject": "reference",
        "setting": 0.1,
        "torch_peak_bytes": 2**20,
        "measured_peak_bytes": 2**20,
        "times_ms": {each: [1.0, 2.0, 3.0] for each in ("plain", "torch", "legroom")},
    }
    text = themes.get("engine").write_markdown(
        {
            "about": ABOUT,
            "cases": {
                "gpt2": {
                    "exact": {"rows": [ran, below]},
                    "compiled": {"rows": [ran]},
                    "speed": speed,
                },
                "bert": {each: {"error": "it broke"} for each in ("exact", "compiled", "speed")},
            },
            "singles": {
                "architectures": {"opt": {"rows": [ran]}},
                "torch_budget": {"rows": [budget_row, {**budget_row, "error": "it broke too"}]},
                "limited": {
                    "case": "gpt2",
                    "size": "deep",
                    "plain_peak_bytes": 2**20,
                    "allowed_bytes": 2**19,
                    "plain": {"losses": ["1.5"]},
                    "limited": {"failed": "out of memory"},
                    "fitted": {"exit_code": 0, "losses": ["1.5"], "report": None, "said": ""},
                },
            },
        }
    )
    for part in ("0 of 9", "below floor (1.0 MiB)", "1.0e-07", "2.00", "it broke too", "opt"):
        assert part in text
    assert text.count("it broke") == 4
    assert "out of memory" in text


def test_the_move_theme_counts_faults():
    seen = {
        **dict.fromkeys(("injected", "raised", "named_tensor", "named_tier", "unchanged"), 3),
        **dict.fromkeys(("same", "slots", "threads", "descriptors"), 0),
        "right_after": 3,
        "messages": [],
        "as_it_should": True,
    }
    row = {"ends": "an error", "models": {"small": seen, "t5": seen, "opt": {"failed": "broke"}}}
    text = themes.get("move").write_markdown(
        {"about": ABOUT, "cases": {}, "singles": {"faults": {"rows": {"file cut": row}}}}
    )
    assert "| file cut | an error | 6 | 0 | 6 | 6 | 6 | 6 | 6 | 0 | 0 | 0 |" in text
    assert "broke" in text
    assert "2 of 3 runs" in text
