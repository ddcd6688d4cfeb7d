"""The page of the contest in a browser: opened offline, drawn without complaint."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import themes
from tests.integration.browser import launch, open_file
from tests.unit.benchmarks.test_contest_tables import RESULT

pytestmark = pytest.mark.browser


def test_verdicts_and_charts_are_drawn(tmp_path: Path) -> None:
    write_page = themes.get("contest").write_page
    assert write_page is not None
    path = tmp_path / "contest.html"
    path.write_text(write_page(RESULT), encoding="utf-8")
    with launch() as browser:
        opened = open_file(browser, RESULT, path)
        assert opened.problems == []
        assert [url for url in opened.requests if not url.startswith("file:")] == []
        outcomes = opened.column("#tally-table tbody tr", "data-outcome")
        assert sorted(outcomes) == ["loss", "loss", "win"]
        assert opened.page.locator("#case-charts canvas").count() == 1
        assert "faster than 1 row of peers" in opened.text("#verdict-text")
        opened.page.click("#theme-toggle")
        assert opened.problems == []
