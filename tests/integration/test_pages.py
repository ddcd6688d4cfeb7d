"""Pages of ways, variants and presets: one for each, up to date, with examples that print that."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("docs_pages", ROOT / "docs" / "pages.py")
pages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pages)

PATHS = [pytest.param(path, id=path.stem) for _, path in pages.entries()]
QUICK = ("sign", "sparse", "relu-from-input", "per-block")
"""Pages whose examples are run by default; `make test-slow` runs all of them."""


def example_of(path):
    found = list(pages.EXAMPLE.finditer(path.read_text()))
    assert len(found) == 1, f"{path.stem} has {len(found)} examples, each a program and its output"
    return found[0]


def test_every_page_is_there_and_up_to_date():
    stale = [path.stem for path, text in pages.pages().items() if path.read_text() != text]
    assert stale == [], "run `python docs/pages.py`"


def test_every_page_is_of_an_entry():
    known = set(pages.pages())
    found = {*(pages.DOCS / "ways").glob("*.md"), *(pages.DOCS / "presets").glob("*.md")}
    assert sorted(each.stem for each in found - known) == []


@pytest.mark.parametrize("path", PATHS)
def test_every_page_has_an_example_of_its_own(path):
    match = example_of(path)
    assert match["output"].strip()
    program = match["program"].lower().replace("_", "-")
    assert path.stem in program or path.stem == "disk"


@pytest.mark.parametrize("path", [each for each in PATHS if each.id in QUICK])
def test_examples_print_what_is_shown(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    match = example_of(path)
    assert pages.output_of(match["program"]) == match["output"]


@pytest.mark.slow
@pytest.mark.parametrize("path", [each for each in PATHS if each.id not in QUICK])
def test_all_examples_print_what_is_shown(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    match = example_of(path)
    assert pages.output_of(match["program"]) == match["output"]
