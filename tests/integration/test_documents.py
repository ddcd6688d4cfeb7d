"""What README and docs show is run here, and what they name exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.made_up_plan import made_up_report, with_sweep

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]
PROGRAMS = [
    pytest.param(code, id=f"{path.relative_to(ROOT)}-{number}")
    for path in DOCUMENTS
    if path.parent.name not in ("ways", "presets")  # those are run by test_pages
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.S))
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_run_as_pasted(program, tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout


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


@pytest.mark.parametrize("command", ["profile", "plan", "run", "verify", "tiers"])
def test_options_in_the_docs_exist(command):
    helped = subprocess.run(
        [sys.executable, "-m", "legroom", command, "--help"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    text = (ROOT / "docs" / f"{command}.md").read_text()
    named = set(re.findall(r"`(--[a-z]+)", text)) - {"--name"}
    assert named
    assert [option for option in named if option not in helped] == []


@pytest.mark.parametrize("command", ["plan", "run", "verify", "tiers"])
def test_every_option_is_in_its_docs(command):
    text = (ROOT / "docs" / f"{command}.md").read_text()
    (group,) = [each for each in cli_commands() if each.name == command]
    options = [name for param in group.params for name in param.opts if name.startswith("--")]
    assert [name for name in options if name not in text] == []


def cli_commands():
    from legroom import cli

    return cli._COMMANDS


def fields_of(value):
    """Every field name in a plan's file, those of its lists' members included."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            if name not in ("peak_kinds", "phase_peaks", "phases"):  # named by kind and phase
                yield from fields_of(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from fields_of(each)


def test_the_plan_format_documents_every_field():
    text = (ROOT / "docs" / "plan-format.md").read_text()
    documented = set(re.findall(r"`([a-z][a-z_]*)`", text))
    fields = set(fields_of(with_sweep(made_up_report()).to_dict()))
    assert fields - documented == set()
    words = {"bitwise", "rounding", "lossy", "captured", "memory"}  # values, not fields
    assert documented - fields == words
