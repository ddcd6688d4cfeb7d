"""The ladder: every technique has its rung, rungs take turns with plain, rows are told apart."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import legroom
from benchmarks import cases, ladder, themes
from benchmarks import run as run_module
from benchmarks.contest import ContestOptions, Heat, measure_heats
from benchmarks.contest import _contest as contest
from benchmarks.contest import worker as worker_module
from benchmarks.contest._race import HeatOptions
from benchmarks.store import Store
from benchmarks.themes import Run
from benchmarks.themes._ladder import PART, differences, options_of, rows_of
from legroom import ways
from legroom.plan import allowed_ways
from tests.unit.benchmarks.test_contest import Pretender, about_tiny
from tests.unit.benchmarks.test_contest_tables import contestant
from tests.unit.benchmarks.test_themes import ABOUT
from tests.unit.benchmarks.tiny import build_tiny

OPTIONS = ContestOptions(peers=("legroom",), rounds=2, most_live=12, shares_cache=True)
NUM_RUNGS = len(ladder.rungs())


class Climber(Pretender):
    """A worker without a process that notes which cache it was given."""

    legroom_caches: ClassVar[list[str]]

    def __init__(self, *, env: dict[str, str]) -> None:
        super().__init__(env=env)
        Climber.legroom_caches.append(env["LEGROOM_CACHE_DIR"])


@pytest.fixture
def climbers(monkeypatch: pytest.MonkeyPatch) -> type[Climber]:
    Pretender.asked, Pretender.caches, Climber.legroom_caches = [], [], []
    real = contest.run_heat

    def pretended(heat: Heat, options: HeatOptions, **further: Any) -> Any:
        return real(heat, options, start=Climber, **further)

    monkeypatch.setattr(contest, "run_heat", pretended)
    return Climber


# -- rungs ---------------------------------------------------------------------------------------


def test_every_technique_has_one_rung() -> None:
    added = Counter(name for rung in ladder.rungs() for name in rung.adds)
    assert set(added) == {*allowed_ways("lossy"), "disk"} - {ways.Hold.name}
    assert set(added.values()) == {1}


def test_rungs_allow_more_and_more() -> None:
    allowed: set[str] = set()
    for rung, setting in ladder.settings("free"):
        left_out = setting.get("without", ())
        now = {name for name in allowed_ways(setting["exactness"]) if name not in left_out}
        now |= {"disk"} if setting.get("disk") else set()
        assert now - allowed - {ways.Hold.name} == set(rung.adds)
        assert allowed <= now
        allowed = now


@pytest.mark.parametrize("budget", ladder.BUDGETS)
def test_rungs_are_options_of_fit(budget: str) -> None:
    for _, setting in ladder.settings(budget):
        legroom.fit(nn.Linear(2, 2), **setting).undo()  # wrong options are refused at once


def test_rungs_of_a_budget_share_a_heat() -> None:
    both = ladder.heats(OPTIONS)
    assert [heat.name for heat in both] == ["ladder free 1", "ladder lowest 1"]
    few = ladder.heats(ContestOptions(peers=(), most_live=4))
    assert max(len(heat.entries) for heat in few) == 2  # beside plain, twice
    for heats in (both, few):
        labels = [entry.label for heat in heats for entry in heat.entries]
        assert Counter(labels) == dict.fromkeys([rung.title for rung in ladder.rungs()], 2)


def test_running_again_lowers_the_floor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cases, "build", build_tiny)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    about = about_tiny(tmp_path)
    worker_module.reference({}, about)
    peaks = []
    for _, setting in list(ladder.settings("lowest"))[:2]:
        ready = worker_module.prepare({}, {"peer": "legroom", "setting": setting, **about})
        assert (ready["status"], ready["num_different"]) == ("ready", 0)
        peaks.append(ready["peak_bytes"])
    assert peaks[1] < peaks[0]


# -- measuring -----------------------------------------------------------------------------------


def test_rungs_share_a_cache_and_contestants_do_not(
    tmp_path: Path, climbers: type[Climber]
) -> None:
    measure_heats(ladder.heats(OPTIONS), "gpt2", OPTIONS, Store(tmp_path))
    assert len(climbers.legroom_caches) == 2 * (3 + NUM_RUNGS)  # plain twice, and the reference
    assert len(set(climbers.legroom_caches)) == 1
    climbers.legroom_caches.clear()
    contest.measure_case("gpt2", ContestOptions(("checkpoint",), most_live=5), Store(tmp_path))
    assert len(climbers.legroom_caches) > 2
    assert len(set(climbers.legroom_caches)) == len(climbers.legroom_caches)


def test_a_ladder_goes_on_where_it_was(tmp_path: Path, climbers: type[Climber]) -> None:
    seen: list[tuple[int, int]] = []
    for _ in range(2):
        run = Run(
            store=Store(tmp_path),
            rounds=2,
            on_progress=lambda what, done, of: seen.append((done, of)),
        )
        measured = themes.get("ladder").measure
        assert measured is not None
        answer = measured("gpt2", run)
        assert seen[-1] == (themes.get("ladder").num_parts(run),) * 2
    prepared = [each for each in Pretender.asked if each["do"] == "prepare"]
    num_plain = 2 * len(answer["heats"])  # twice in each heat; of the others nobody is
    assert len(prepared) == NUM_RUNGS * 2 + num_plain
    assert options_of(run).rounds == 2


def test_two_cases_are_measured_unless_others_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def told(heats: Any, name: str, *further: Any, **options: Any) -> dict[str, Any]:
        return {"error": f"it broke on {name}"}

    monkeypatch.setattr("benchmarks.themes._ladder.measure_heats", told)
    places = ("--folder", str(tmp_path / "results"), "--store", str(tmp_path / "store"))
    monkeypatch.setattr(sys, "argv", ["run", "ladder", "--rounds", "1", *places])
    run_module.main()
    (text,) = (tmp_path / "results").glob("ladder_cpu_*_maintainers.md")
    assert [name for name in cases.names() if f"it broke on {name}" in text.read_text()] == [
        *("gpt2", "resnet50")
    ]


# -- tables --------------------------------------------------------------------------------------


def rung(title: str, budget: str, *, peak: int, step_ms: float, **further: Any) -> dict[str, Any]:
    report = {
        "predicted_peak_bytes": peak * 2**20,
        "added_ms": 5.0,
        "planning_s": 7.0,
        "ways": {"remake": {"tensors": 3, "bytes": 9}},
        "rewrites": ["chunked-mlp"],
    }
    setting = {"budget": budget}
    further = {"setting": setting, "report": report, **further}
    return contestant("legroom", title, peak=peak, step_ms=step_ms, **further)


PLAIN = contestant("plain", "plain", peak=100, step_ms=100.0)
ANSWER = {
    "heats": [
        {
            "name": "ladder free 1",
            "rows": [
                PLAIN,
                rung("fused operations", "free", peak=80, step_ms=90.0),
                rung("running again", "free", peak=60, step_ms=100.0),
                {"peer": "legroom", "label": "the disk", "setting": {"budget": "free"},
                 "status": "failed", "why": "it broke", "wall_ms": [], "cpu_ms": []},
                rung("fewer bits", "free", peak=30, step_ms=100.0),
            ],
        },
        {
            "name": "ladder lowest 1",
            "rows": [
                PLAIN,
                rung("fused operations", "lowest", peak=80, step_ms=90.0),
                rung("running again", "lowest", peak=40, step_ms=130.0),
            ],
        },
        {
            "name": "ladder lowest 2",
            "rows": [
                contestant("plain", "plain", peak=100, step_ms=50.0),
                rung("the disk", "lowest", peak=20, step_ms=100.0),
                rung("fewer bits", "lowest", peak=10, step_ms=100.0, num_different=9,
                     loss_off=2e-4, gradient_off=0.03),
            ],
        },
    ]
}  # fmt: skip


def test_each_row_is_compared_with_the_row_above() -> None:
    text = themes.get("ladder").write_markdown({"about": ABOUT, "cases": {"gpt2": {PART: ANSWER}}})
    rows = [line for line in text.splitlines() if line.startswith(("| plain |", "| + "))]
    assert rows[0] == "| plain | 100.0 |  | 1 | 100.0 |  | 1 | 0 | same bits |"
    assert rows[1].startswith("| + fused operations | 80.0 | -20.0 % | 0.900 (0.900 to 0.900) | ")
    assert "| 60.0 | -25.0 % | 1.000 (1.000 to 1.000) | 40.0 | -50.0 % | 1.300 (" in rows[2]
    assert "| failed: it broke | – | – | 20.0 | -50.0 % | 2.000 (" in rows[3]
    # What failed is passed over: against the last row that trained.
    assert rows[4].startswith("| + fewer bits | 30.0 | -50.0 % | ")
    assert rows[4].endswith(" | 2e-04 | 3e-02 |")
    row = "| running again, lowest | 40.0 | 40.0 | 1.050 | 1.300 | 7 | remake 3, chunked-mlp |"
    assert row in text


def test_rows_are_held_to_plain_of_their_heat() -> None:
    by_rung = rows_of(ANSWER)
    assert list(by_rung) == [
        *("plain", "fused operations", "running again", "the disk", "fewer bits")
    ]
    assert all(list(each) == list(ladder.BUDGETS) for each in by_rung.values())
    _, plain = by_rung["fewer bits"]["lowest"]
    assert plain["cpu_ms"][0] == 50.0


def test_the_worse_of_two_differences_is_shown() -> None:
    same = rung("x", "free", peak=1, step_ms=1.0)
    off = {**same, "num_different": 3, "gradient_off": 0.2, "num_missing": 1}
    assert differences([same, same]) == ["0", "same bits"]
    assert differences([same, off]) == ["0", "2e-01, 1 missing"]
    assert differences([{**same, "num_compared": 0}]) == ["–", "–"]
