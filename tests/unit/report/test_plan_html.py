"""The page of a plan as text: well formed, its data intact, nothing loaded, nothing let through."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from legroom.errors import PlanFormatError, ProfileFormatError
from legroom.plan import PlanReport
from legroom.report import load_report, render_html, write_html
from tests.html_page import Page
from tests.made_up_plan import made_up_report, with_sweep

HOSTILE = "</script><script>alert(1)</script><!--<img src=x> @@data@@ \u2028"


def test_page_is_well_formed() -> None:
    page = Page(render_html(made_up_report()))
    page.check_whole()
    page.check_offline()
    sections = {"verdict", "frontier", "timeline", "decisions", "sweep", "limits"}
    assert sections <= set(page.ids())


def test_every_link_leads_to_a_section() -> None:
    page = Page(render_html(made_up_report()))
    targets = [str(attributes["href"])[1:] for attributes, _ in page.all_of("a")]
    assert set(targets) <= set(page.ids())


@pytest.mark.parametrize("report", [made_up_report(), with_sweep(made_up_report())])
def test_data_block_equals_the_plan(report: PlanReport) -> None:
    data = Page(render_html(report)).data()
    data.pop("kind_list")
    assert data == json.loads(json.dumps(report.to_dict()))
    assert PlanReport.from_dict(data) == report


def test_every_way_is_named_in_the_page() -> None:
    report = made_up_report()
    text = render_html(report)
    assert report.chosen is not None
    for name in {*report.ways, *(each.way for each in report.chosen.decisions)}:
        assert name in text


def test_hostile_names_stay_data() -> None:
    report = made_up_report()
    assert report.chosen is not None
    decisions = tuple(replace(each, module=HOSTILE) for each in report.chosen.decisions)
    hostile = replace(
        report, target=HOSTILE, chosen=replace(report.chosen, decisions=decisions, preset=HOSTILE)
    )
    text = render_html(hostile)
    page = Page(text)
    page.check_whole()
    assert len(page.all_of("script")) == 3
    assert page.all_of("img") == []
    assert HOSTILE not in text
    assert page.data()["target"] == HOSTILE


def test_write_html_writes_plans(tmp_path: Path) -> None:
    write_html(made_up_report(), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text == render_html(made_up_report())


def test_files_are_read_by_their_schema(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    made_up_report().save(path)
    assert load_report(path) == made_up_report()
    path.write_text('{"schema": "legroom.plan/1"}')
    with pytest.raises(PlanFormatError, match="plan lacks the field 'target'"):
        load_report(path)
    path.write_text('{"schema": "other"}')
    with pytest.raises(ProfileFormatError, match="its schema is 'other'"):
        load_report(path)
