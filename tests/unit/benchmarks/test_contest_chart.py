"""The contest's pictures: every contestant is named, what is joined, and the same bytes twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import peers, run, themes
from benchmarks.processes import ROOT
from benchmarks.themes._contest import PART
from benchmarks.themes._contest_chart import CASES, lines_of, write_charts
from tests.unit.benchmarks.test_contest_tables import BITWISE, HEATS, PLAIN, contestant, fitted
from tests.unit.benchmarks.test_themes import ABOUT

SVG = "{http://www.w3.org/2000/svg}"


def everybody() -> dict[str, Any]:
    """Every peer at one setting, legroom on three terms."""
    rows = [PLAIN]
    for number, name in enumerate(peers.names()):
        if name not in ("plain", "legroom"):
            rows.append(contestant(name, name, peak=40 + number, step_ms=110.0 + 3 * number))
    for terms in (
        BITWISE,
        {**BITWISE, "disk": True},
        {"exactness": "rounding", "executor": "inductor"},
        {"exactness": "lossy", "executor": "eager"},
    ):
        for peak in (90, 30, 60):
            row = fitted(peak, peak=peak, step_ms=140.0 - peak / 2)
            rows.append({**row, "setting": {"budget": peak, **terms}})
    return {"heats": [{"name": "x", "terms": None, "rows": rows}, HEATS["heats"][0]]}


def result_of(answer: dict[str, Any], **about: Any) -> dict[str, Any]:
    return {"about": {**ABOUT, **about}, "cases": {"gpt2": {PART: answer}}}


def test_points_are_joined_in_order_of_peak() -> None:
    lines = {line.name: line for line in lines_of(everybody())}
    peaks = [peak for peak, _ in lines["legroom bitwise disk"].points]
    assert peaks == [30, 60, 90]
    assert [time for _, time in lines["plain"].points] == [1.0]  # once, whatever the heats
    assert lines["legroom rounding inductor"].exactness == "rounding"
    assert lines["actnn"].exactness == "lossy"


def test_nobody_looks_like_another() -> None:
    lines = [line for line in lines_of(everybody()) if not line.is_ours]
    assert len(lines) == len(peers.names()) - 1
    assert len({(line.exactness, line.marker) for line in lines}) == len(lines)
    ours = [line for line in lines_of(everybody()) if line.is_ours]
    assert len({line.marker for line in ours}) == 3  # one for each exactness


def test_chart_names_everybody_once() -> None:
    (chart,) = write_charts(result_of(everybody())).values()
    texts = [each.text for each in ElementTree.fromstring(chart).iter(f"{SVG}text")]
    for line in lines_of(everybody()):
        assert texts.count(line.name) == 1
    assert {"same bits", "other rounding", "lossy", "gpt2: what a lower peak costs"} <= {*texts}


def test_same_result_gives_the_same_bytes() -> None:
    program = (
        "from tests.unit.benchmarks.test_contest_chart import *;"
        "print(write_charts(result_of(everybody()))['gpt2'], end='')"
    )
    other = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert write_charts(result_of(everybody()))["gpt2"] == other.stdout


def test_what_has_no_points_has_no_chart() -> None:
    assert write_charts(result_of({"error": "it broke"})) == {}
    assert write_charts(result_of(everybody(), quick=True)) == {}
    assert write_charts({"about": ABOUT, "cases": {"vit": {PART: everybody()}}}) == {}


def test_charts_are_written_beside_the_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured = {"cases": {name: {PART: HEATS} for name in CASES}}
    monkeypatch.setattr(run, "_measure", lambda *arguments: measured)
    monkeypatch.setattr(sys, "argv", ["run", "contest", "--folder", str(tmp_path)])
    run.main()
    assert sorted(file.name for file in tmp_path.glob("*.svg")) == [
        f"contest_{name}.svg" for name in CASES
    ]


def test_drawing_is_imported_when_something_is_drawn() -> None:
    program = "import sys; import benchmarks.run; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
    assert themes.get("contest").write_charts is write_charts
