"""What README and docs show is run here, and what they name exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]
PROGRAMS = [
    pytest.param(code, id=f"{path.relative_to(ROOT)}-{number}")
    for path in DOCUMENTS
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.S))
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_run_as_pasted(program, tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "Memory at the peak" in run.stdout


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text())
    broken = [t for t in targets if "://" not in t and not (path.parent / t).exists()]
    assert broken == []


def test_the_readme_stays_one_screenful():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_makefile_lists_every_target():
    text = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z-]+):", text, re.M)
    described = re.findall(r"^([a-z-]+):.*##", text, re.M)
    assert set(targets) == set(described)
    assert {"setup", "demo", "test", "check", "bench", "help"} <= set(targets)


def test_options_in_the_docs_exist():
    helped = subprocess.run(
        [sys.executable, "-m", "legroom", "profile", "--help"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    text = (ROOT / "docs" / "profile.md").read_text()
    named = set(re.findall(r"`(--[a-z]+)", text))
    assert named
    assert [option for option in named if option not in helped] == []
