"""The themes of the benchmarks: every part has somebody who measures it; failures become rows."""

import importlib

import pytest

from benchmarks import themes
from benchmarks.processes import answer_of

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
