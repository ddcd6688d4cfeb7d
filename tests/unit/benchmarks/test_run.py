"""The entry point: what it refuses, what it writes, and that it measures nothing twice."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import run, themes
from benchmarks.contest import Entry, Row
from benchmarks.contest import _contest as contest


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["run", *arguments])
    run.main()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--peers", "checkpiont"), "unknown peer 'checkpiont'"),
        (("--cases", "gtp2"), "unknown case 'gtp2'"),
    ],
)
def test_unknown_names_are_refused(
    option: tuple[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        call(monkeypatch, "contest", *option)
    assert message in capsys.readouterr().err


def test_parts_of_themes_are_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, ...]] = []

    def answer(*arguments: str) -> dict[str, Any]:
        asked.append(arguments)
        return {"error": "it broke"}

    monkeypatch.setattr(run, "answer_of", answer)
    places = ("--folder", str(tmp_path / "results"), "--store", str(tmp_path / "store"))
    for further in ((), (), ("--fresh",)):
        call(monkeypatch, "meter", "--cases", "gpt2", *places, *further)
    theme = themes.get("meter")
    assert len(asked) == 2 * (len(theme.case_parts) + len(theme.single_parts))
    (text,) = (tmp_path / "results").glob("meter_cpu_*_maintainers.md")
    assert "it broke" in text.read_text()


def test_quick_contest_writes_three_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out_of_memory = Row(Entry("plain", {}), {"status": "out of memory", "why": "killed"})
    monkeypatch.setattr(contest, "run_heat", lambda heat, options, **further: [out_of_memory])
    places = ("--folder", str(tmp_path / "results"), "--store", str(tmp_path / "store"))
    call(monkeypatch, "contest", "--quick", "--cases", "gpt2", "--rounds", "1", *places)
    written = sorted(
        file.name.split("_")[0] + file.suffix for file in (tmp_path / "results").iterdir()
    )
    assert written == ["contest-quick.html", "contest-quick.json", "contest-quick.md"]
    assert "12/12 contest, gpt2, rounding inductor 1 (" in capsys.readouterr().out


def test_a_command_names_no_places_of_a_machine() -> None:
    arguments = [
        "reach",
        "--folder",
        "some/where",
        "--parts",
        "batch lossy",
        "--store=else",
        "--add",
    ]
    assert run.command_of(arguments) == "python -m benchmarks.run reach --parts 'batch lossy' --add"
