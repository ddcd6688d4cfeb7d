"""The page of a plan in a browser: opened offline, its numbers read back and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from legroom.plan import PlanReport, PresetPoint
from legroom.units import format_bytes
from tests.integration.browser import HOSTILE, OpenPage, launch, open_page
from tests.made_up_plan import MIB, made_up_report, with_sweep, with_tiers

pytestmark = pytest.mark.browser

OpenFunction = Callable[[PlanReport], OpenPage]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launch() as chromium:
        yield chromium


@pytest.fixture
def open_plan(browser: Any, tmp_path: Path) -> Iterator[OpenFunction]:
    pages: list[OpenPage] = []

    def open_one(report: PlanReport) -> OpenPage:
        pages.append(open_page(browser, report, tmp_path / "page.html"))
        return pages[-1]

    yield open_one
    for opened in pages:
        opened.page.context.close()


def chart_series(opened: OpenPage, host: str, name: str) -> list[list[float]]:
    script = (
        "([host, name]) => echarts.getInstanceByDom(document.getElementById(host)).getOption()"
        ".series.find((series) => series.id === name).data.map((item) => item.value ?? item)"
    )
    result: list[list[float]] = opened.page.evaluate(script, [host, name])
    return result


def test_page_opens_offline_and_quietly(open_plan: OpenFunction) -> None:
    opened = open_plan(with_sweep(made_up_report()))
    opened.page.wait_for_timeout(200)
    assert opened.problems == []
    assert [url.partition(":")[0] for url in opened.requests] == ["file"]
    width = opened.page.evaluate("document.documentElement.scrollWidth")
    assert width == opened.page.evaluate("window.innerWidth")
    assert opened.page.title() == "python train.py --batch-size 8 – legroom plan"


def test_verdict_tells_peaks_and_price(open_plan: OpenFunction) -> None:
    report = made_up_report()
    opened = open_plan(report)
    assert report.chosen is not None
    assert opened.number("#plain-peak") == report.plain_peak_bytes
    assert opened.number("#floor-peak") == report.floor_peak_bytes
    assert opened.number("#budget") == report.chosen.budget_bytes
    assert opened.number("#added", "data-ms") == report.chosen.added_ms
    assert "It fits into 300.0 MiB at +24.5 ms (6.1 % of a step)." in opened.text("#verdict-text")
    assert opened.number("[data-figure=predicted]") == report.chosen.predicted_peak_bytes
    assert "93 % of the time measured" in opened.text("[data-figure=step]")
    assert opened.page.locator("#timed-out").count() == 0


def test_frontier_is_a_staircase_with_points(open_plan: OpenFunction) -> None:
    opened = open_plan(made_up_report())
    script = (
        "() => echarts.getInstanceByDom(document.getElementById('frontier-chart')).getOption()"
        ".series.filter((s) => s.type === 'line').map((s) => [s.id, s.step, s.smooth, s.symbol])"
    )
    assert opened.page.evaluate(script) == [
        ["bound", "start", False, "none"],
        ["plans", "end", False, "circle"],
    ]


def test_frontier_chart_shows_plans_bounds_and_presets(open_plan: OpenFunction) -> None:
    report = made_up_report()
    opened = open_plan(report)
    assert report.chosen is not None

    def drawn(name: str) -> list[list[float]]:
        return [[round(x * MIB), y] for x, y in chart_series(opened, "frontier-chart", name)]

    points = sorted(report.frontier, key=lambda point: point.predicted_peak_bytes)
    assert drawn("bound") == [[p.predicted_peak_bytes, p.bound_ms] for p in points]
    assert drawn("presets") == [[p.predicted_peak_bytes, p.added_ms] for p in report.presets]
    assert drawn("chosen") == [[report.chosen.predicted_peak_bytes, report.chosen.added_ms]]
    rows = opened.numbers("#frontier-table tbody tr")
    assert rows == [point.budget_bytes for point in report.frontier]
    assert opened.page.locator("#frontier-table tr.is-chosen").count() == 1
    assert set(opened.column("#presets-table tbody tr", "data-preset")) == {"plain", "per-block"}


def test_nothing_that_was_simulated_lies_below_the_staircase(open_plan: OpenFunction) -> None:
    report = made_up_report()
    assert report.chosen is not None
    few = (report.frontier[0], report.frontier[-1])
    better = PresetPoint("better", "than plans", few[-1].predicted_peak_bytes, 1.0)
    presets = (*report.presets, better, PresetPoint("worse", "than plans", 450 * MIB, 300.0))
    opened = open_plan(replace(report, frontier=few, presets=presets))
    steps = [(round(x * MIB), y) for x, y in chart_series(opened, "frontier-chart", "plans")]
    assert steps == sorted(steps)
    simulated = [
        *((p.predicted_peak_bytes, p.added_ms) for p in (*few, report.chosen, *presets)),
    ]
    assert set(steps) <= set(simulated)
    for peak_bytes, added_ms in simulated:
        assert min(y for x, y in steps if x <= peak_bytes) <= added_ms
    drawn = {
        (round(x * MIB), y)
        for name in ("plans", "beaten", "presets", "chosen")
        for x, y in chart_series(opened, "frontier-chart", name)
    }
    assert drawn == set(simulated)
    assert opened.problems == []


def test_timeline_shows_the_plan_against_its_budget(open_plan: OpenFunction) -> None:
    report = made_up_report()
    opened = open_plan(report)
    assert report.chosen is not None
    line = chart_series(opened, "timeline-chart", "alive")
    assert [[x, round(y * MIB)] for x, y in line] == [list(p) for p in report.chosen.timeline]
    assert opened.numbers("#alive tbody tr") == [64 * MIB, 40 * MIB]


def test_decisions_group_filter_and_sort(open_plan: OpenFunction) -> None:
    report = made_up_report()
    opened = open_plan(report)
    assert report.chosen is not None
    rows = "#decisions-table tbody tr"
    assert opened.numbers(rows) == [96 * MIB, 36 * MIB, 4 * MIB, 0]
    assert opened.column(rows, "data-module")[0] == "transformer.h.*.mlp.act"
    opened.page.locator("#decisions-table [data-sort=added_ms]").click()
    assert opened.numbers(rows, "data-ms") == [18, 6, 0.5, 0]

    opened.page.locator("#decisions-form").select_option("remake")
    assert set(opened.column(rows, "data-form")) == {"remake"}
    assert opened.number("#decisions-count", "data-count") == 24
    opened.page.locator("#decisions-line").select_option("models/gpt.py:22")
    assert opened.number("#decisions-count") == 36 * MIB
    opened.page.locator("#decisions-line").select_option("")
    opened.page.locator("#decisions-module").select_option("transformer.h.*.mlp.act")
    assert opened.number("#decisions-count") == 96 * MIB
    opened.page.locator("#decisions-module").select_option("")
    opened.page.locator("#decisions-form").select_option("")

    opened.page.locator("#decisions-grouping input[value=tensor]").check()
    assert opened.page.locator("#decisions-table").get_attribute("data-grouping") == "tensor"
    opened.page.locator("#decisions-text").fill("h.5. dropout")
    assert opened.column(rows, "data-module") == ["transformer.h.5.dropout"]
    assert opened.problems == []


def test_every_way_used_is_named_and_adds_up(open_plan: OpenFunction) -> None:
    report = made_up_report()
    opened = open_plan(report)
    assert report.chosen is not None
    used = {each.way for each in report.chosen.decisions}
    assert set(opened.column("#ways-bar > div", "data-form")) == used
    assert used <= set(opened.text("#ways-table").split())
    total = sum(each.num_bytes for each in report.chosen.decisions)
    assert sum(opened.numbers("#ways-bar > div")) == total
    assert opened.column("#variants details", "data-variant") == ["relu-from-input"]
    assert all(name in opened.text("#facts") for name in report.ways)


def test_what_is_held_elsewhere_says_where(open_plan: OpenFunction) -> None:
    opened = open_plan(with_tiers(made_up_report()))
    forms = {"hold", "remake", "host", "bits on disk"}
    assert set(opened.column("#ways-bar > div", "data-form")) == forms
    assert "bits on disk" in opened.text("#ways-table")
    rows = "#decisions-table tbody tr"
    assert set(opened.column(rows, "data-form")) == forms
    opened.page.locator("#decisions-form").select_option("bits on disk")
    assert opened.column(rows, "data-module") == ["transformer.h.*.dropout"]
    assert opened.problems == []


def test_what_is_not_planned_is_listed(open_plan: OpenFunction) -> None:
    opened = open_plan(made_up_report())
    text = opened.text("#limits-list")
    assert "They run in other threads. (5.00 MiB)" in text
    assert "the loss function" in text.lower()


def test_a_sweep_says_the_largest_value(open_plan: OpenFunction) -> None:
    opened = open_plan(with_sweep(made_up_report()))
    assert opened.number("#largest", "data-value") == 10
    rows = "#sweep-table tbody tr"
    assert opened.numbers(rows, "data-value") == [1, 4, 10, 11]
    assert opened.column(rows, "data-fits") == ["true", "true", "true", "false"]


def test_page_stands_what_may_be_missing(open_plan: OpenFunction) -> None:
    report = made_up_report()
    opened = open_plan(
        replace(report, chosen=None, frontier=(), presets=(), not_planned=(), measured_share=0.0)
    )
    assert opened.problems == []
    assert opened.page.locator("#no-budget").is_visible()
    assert opened.page.locator("#all-planned").is_visible()
    for section in ("timeline", "decisions", "sweep"):
        assert not opened.page.locator(f"#{section}").is_visible()
        assert not opened.page.locator(f"#nav a[href='#{section}']").is_visible()
    assert "none measured" in opened.text("[data-figure=step]")


def test_a_time_limit_is_a_badge(open_plan: OpenFunction) -> None:
    report = made_up_report()
    assert report.chosen is not None
    bare = replace(report.chosen, timed_out=True, gap=0.12, timeline=(), phases=(), decisions=())
    opened = open_plan(replace(report, chosen=replace(bare, alive_at_peak=(), variants=())))
    assert "best plan so far, at most 12 % slower" in opened.text("#timed-out")
    assert opened.problems == []


def test_theme_and_size_redraw(open_plan: OpenFunction) -> None:
    opened = open_plan(with_sweep(made_up_report()))
    opened.page.locator("#theme-toggle").click()
    opened.page.set_viewport_size({"width": 1000, "height": 800})
    opened.page.wait_for_timeout(100)
    assert opened.page.locator("html").get_attribute("data-theme") == "dark"
    assert opened.problems == []


def test_hostile_names_are_only_text(open_plan: OpenFunction) -> None:
    report = with_sweep(made_up_report())
    assert report.chosen is not None
    decisions = tuple(
        replace(each, module=HOSTILE, line=HOSTILE, way=HOSTILE, reason=HOSTILE, tensor=HOSTILE)
        for each in report.chosen.decisions
    )
    presets = tuple(replace(each, name=HOSTILE, summary=HOSTILE) for each in report.presets)
    opened = open_plan(
        replace(
            report,
            target=HOSTILE,
            chosen=replace(report.chosen, decisions=decisions, preset=HOSTILE),
            presets=presets,
            not_planned=((HOSTILE, HOSTILE, 5),),
            swept_argument=HOSTILE,
        )
    )
    x, y = opened.point_in("#frontier-chart", 0.5, 0.5)
    opened.page.mouse.move(x, y)
    opened.page.wait_for_timeout(100)
    assert opened.page.evaluate("window.hacked") is None
    assert opened.problems == []
    assert opened.page.locator("img").count() == 0
    assert opened.text("#bar-command") == HOSTILE
    assert format_bytes(5) in opened.text("#limits-list")
