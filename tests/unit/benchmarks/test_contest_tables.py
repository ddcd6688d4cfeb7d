"""What the contest's rows become: tables in which every loss has a reason, and a page."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import themes
from benchmarks.themes._contest import PART, geometric_mean, lowest_peak
from benchmarks.themes._contest_page import page_data
from benchmarks.themes._contest_rows import judged_rows, merge_answers, predictions
from tests.html_page import Page
from tests.unit.benchmarks.test_themes import ABOUT

BITWISE = {"exactness": "bitwise", "executor": "eager"}
ROUNDS = 6


def contestant(
    peer: str, label: str, *, peak: int, step_ms: float, rival: str = "", **further: Any
) -> dict[str, Any]:
    times = [step_ms + 0.01 * number for number in range(ROUNDS)]
    return {
        "peer": peer,
        "setting": {},
        "label": label,
        "rival": rival,
        "status": "ready",
        "peak_bytes": peak * 2**20,
        "resident_bytes": peak * 2**20,
        "stash_bytes": 2**20,
        "preparation_s": 3.0,
        "wall_ms": times,
        "cpu_ms": times,
        "loss_off": 0.0,
        "gradient_off": 0.0,
        "num_compared": 9,
        "num_different": 0,
        **further,
    }


def fitted(budget: int, *, peak: int, step_ms: float) -> dict[str, Any]:
    return contestant(
        "legroom",
        f"legroom ({budget} MiB, bitwise)",
        peak=peak,
        step_ms=step_ms,
        setting={"budget": budget, **BITWISE},
        report={"predicted_peak_bytes": peak * 2**20, "added_ms": 5.0, "ways": {}},
    )


PLAIN = contestant("plain", "plain", peak=100, step_ms=100.0)
HEATS = {
    "heats": [
        {
            "name": "bitwise 1",
            "terms": BITWISE,
            "rows": [
                PLAIN,
                contestant("plain", "plain, again", peak=100, step_ms=101.0),
                contestant("plain", "plain (as it comes)", peak=100, step_ms=120.0,
                           setting={"glibc": "as it comes"}),
                contestant("checkpoint", "checkpoint", peak=50, step_ms=130.0,
                           rival="legroom (50 MiB, bitwise)"),
                contestant("selective", "selective (all)", peak=70, step_ms=104.0,
                           rival="legroom (70 MiB, bitwise)"),
                contestant("chen", "chen (floor)", peak=20, step_ms=150.0,
                           rival="legroom (20 MiB, bitwise)"),
                {"peer": "save-on-cpu", "setting": {}, "label": "save-on-cpu", "rival": "",
                 "status": "failed", "why": "it broke", "wall_ms": [], "cpu_ms": []},
                fitted(50, peak=50, step_ms=110.0),
                fitted(70, peak=69, step_ms=108.0),
                {"peer": "legroom", "setting": {"budget": 20, **BITWISE}, "wall_ms": [],
                 "cpu_ms": [], "label": "legroom (20 MiB, bitwise)", "rival": "",
                 "status": "below floor", "floor_bytes": 30 * 2**20},
            ],
        },
    ]
}  # fmt: skip
RESULT = {"about": ABOUT, "cases": {"gpt2": {PART: HEATS}}}


def test_wins_ties_and_losses_are_counted() -> None:
    judged = {each.label: each for each in judged_rows(HEATS)}
    assert {label: each.verdict.outcome.value for label, each in judged.items()} == {
        "checkpoint": "win",
        "selective (all)": "loss",
        "chen (floor)": "loss",
    }
    assert judged["selective (all)"].explanation == (
        "predicted 1.050 of plain, measured 1.080; it has 1.040"
    )
    assert judged["chen (floor)"].explanation == "cannot go below 30.0 MiB"


def test_legroom_meets_plain_at_its_peak() -> None:
    whole = fitted(100, peak=90, step_ms=95.0)
    met = {**PLAIN, "rival": whole["label"]}
    (judged,) = judged_rows({"heats": [{"name": "x", "terms": BITWISE, "rows": [met, whole]}]})
    assert (judged.label, judged.verdict.outcome.value) == ("plain", "win")


def test_plans_with_less_are_met_under_their_terms() -> None:
    less, ours = fitted(50, peak=50, step_ms=99.0), fitted(51, peak=50, step_ms=95.0)
    less["rival"] = ours["label"]
    (judged,) = judged_rows({"heats": [{"name": "x", "terms": {}, "rows": [PLAIN, less, ours]}]})
    assert (judged.peer, judged.verdict.outcome.value) == ("legroom bitwise", "win")


def test_added_heats_replace_those_with_the_same_entrants() -> None:
    def heat(*rows: dict[str, Any], terms: dict[str, Any] | None = BITWISE) -> dict[str, Any]:
        return {"name": "bitwise 1", "terms": terms, "rows": [PLAIN, *rows]}

    checkpoint = contestant("checkpoint", "checkpoint", peak=50, step_ms=120.0)
    chen = contestant("chen", "chen (floor)", peak=50, step_ms=120.0)
    ours = fitted(50, peak=50, step_ms=110.0)
    old = {"heats": [heat(checkpoint, ours), heat(ours, terms=None)]}
    for new, expected in (
        (heat(checkpoint, chen, ours), [old["heats"][1]]),
        (heat(chen, ours), old["heats"]),
        (heat(ours, terms=None), [old["heats"][0]]),
    ):
        assert merge_answers(old, {"heats": [new]}) == {"heats": [*expected, new]}


def test_tables_have_every_row_and_reason() -> None:
    text = themes.get("contest").write_markdown(RESULT)
    for part in (
        "faster in **1**, as fast in **0**, slower or above the peak in **2**",
        "| checkpointing every block | 0.846 | ≤ 0.92: met | 1 | gpt2 0.846 |",
        "failed: it broke",
        "| gpt2 | 1 | 0 | 2 | no |",
        "below floor (lowest 30.0 MiB)",
        "cannot go below 30.0 MiB",
        "same bits",
        "a patched PyTorch 1.5",
    ):
        assert part in text
    for line in text.splitlines():
        assert not line.startswith("|") or line.endswith(" |")


def test_few_rounds_are_called_an_impression() -> None:
    rows = [{**row, "cpu_ms": row["cpu_ms"][:2]} for row in HEATS["heats"][0]["rows"]]
    heat = {**HEATS["heats"][0], "rows": rows}
    few = {"about": ABOUT, "cases": {"gpt2": {PART: {"heats": [HEATS["heats"][0], heat]}}}}
    assert "are an impression, no result" in themes.get("contest").write_markdown(few)
    assert "are an impression" not in themes.get("contest").write_markdown(RESULT)


def test_heats_of_several_runs_say_which() -> None:
    (heat,) = HEATS["heats"]
    heats = [{**heat, "commit": name, "date": "2026-11-18"} for name in ("aa1", "aa1", "bb2")]
    result = {"about": ABOUT, "cases": {"gpt2": {PART: {"heats": heats}}}}
    said = f"2 at commit aa1 (2026-11-18, {ROUNDS} rounds), 1 at commit bb2 (2026-11-18"
    assert said in themes.get("contest").write_markdown(result)


def test_predictions_are_held_to_measurements() -> None:
    (found,) = predictions({"gpt2": HEATS}).values()
    assert [each.peak_off for each in found] == [0.0, 0.0]
    assert [round(each.time_off, 3) for each in found] == [0.05, 0.03]


def test_best_setting_is_the_lowest_peak() -> None:
    rows = [PLAIN]
    for peak, rival in ((60, 60), (40, 40)):
        rows += [
            contestant("torch-budget", f"torch-budget ({peak})", peak=peak, step_ms=120.0,
                       rival=f"legroom ({rival} MiB, bitwise)"),
            fitted(rival, peak=peak, step_ms=110.0),
        ]  # fmt: skip
    judged = judged_rows({"heats": [{"name": "x", "terms": BITWISE, "rows": rows}]})
    best = lowest_peak(judged, "torch-budget")
    assert best is not None
    assert best.label == "torch-budget (40)"
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)


def test_page_has_every_point_and_opens_offline() -> None:
    data = page_data(RESULT)
    (case,) = data["cases"]
    assert [each["label"] for each in case["points"]] == [
        *("plain", "checkpoint", "selective (all)", "chen (floor)"),
        *("legroom (50 MiB, bitwise)", "legroom (70 MiB, bitwise)"),
    ]
    assert {each["line"] for each in case["points"]} >= {"plain", "legroom bitwise"}
    assert [each["why"] for each in case["absent"]] == ["it broke", "below floor"]
    write_page = themes.get("contest").write_page
    assert write_page is not None
    page = Page(write_page(RESULT))
    page.check_offline()
    assert page.data()["cases"] == data["cases"]


def test_controls_are_in_tables_and_not_on_lines() -> None:
    written = themes.get("contest").write_markdown(RESULT)
    section = written.split("## The same contestant twice")[1].split("## ")[0]
    (again,) = [line for line in section.splitlines() if line.startswith("| plain, again")]
    assert "1.010" in again
    assert "1.00 %" in again
    (as_it_comes,) = [line for line in section.splitlines() if "(as it comes) |" in line]
    assert "gpt2 1.200" in as_it_comes
    (case,) = page_data(RESULT)["cases"]
    assert [each["label"] for each in case["points"] if each["line"] == "plain"] == ["plain"]


def test_what_plain_differs_from_itself_by_is_a_tie() -> None:
    def outcome_of(again_ms: float) -> str:
        rows = [
            PLAIN,
            contestant("plain", "plain, again", peak=100, step_ms=again_ms),
            contestant("plain", "plain (as it comes)", peak=100, step_ms=150.0,
                       setting={"glibc": "as it comes"}),
            contestant("checkpoint", "checkpoint", peak=50, step_ms=110.0,
                       rival="legroom (50 MiB, bitwise)"),
            fitted(50, peak=50, step_ms=107.0),
        ]  # fmt: skip
        heat = {"name": "bitwise 1", "terms": BITWISE, "rows": rows}
        (judged,) = judged_rows({"heats": [heat]})
        return judged.verdict.outcome.value

    assert outcome_of(100.0) == "win"
    assert outcome_of(95.0) == "tie"
