"""The tutorial's commands, run in its order, print what it shows: words alike, figures apart."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "tutorial.md").read_text()
SESSIONS = re.findall(r"```console\n(.*?)```", TEXT, re.S)
NUMBER = re.compile(r"[−+-]?\d[\d.,]*( (B|KiB|MiB|GiB|µs|ms|s|min)\b)?")
ROW = re.compile(r"^ *[−+]?\d|  +[−+]?\d")
"""Of a table: about this machine's times. Titles, headers and sentences are not."""
INSTALLING = ("git clone", "cd ", "make ", "source ")


def commands_of(session):
    """Pairs of a command and the lines that it is said to print."""
    found = []
    for line in session.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


COMMANDS = [each for session in SESSIONS for each in commands_of(session)]
RUN = [each for each in COMMANDS if not each[0].startswith(INSTALLING)]


def words_of(text):
    """A text without its figures and line breaks: what is the same on every machine."""
    return " ".join(NUMBER.sub("#", text.replace("(exactly)", "(0 %)")).split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the example in it, as in a clone."""
    made = tmp_path_factory.mktemp("tutorial")
    (made / "examples").symlink_to(ROOT / "examples")
    return made


@pytest.mark.parametrize(("command", "shown"), RUN, ids=[each[0] for each in RUN])
def test_commands_print_what_is_shown(command, shown, folder):
    program, *arguments = command.split()
    python = {"python": [], "legroom": ["-m", "legroom"]}[program]
    run = subprocess.run(
        [sys.executable, *python, *arguments], cwd=folder, capture_output=True, text=True,
        check=False, env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}, timeout=500,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    printed = words_of(run.stdout + run.stderr)
    wanted = [words_of(line) for line in shown if line not in ("", "…") and not ROW.search(line)]
    assert wanted
    assert [line for line in wanted if line not in printed] == []


def test_the_tutorial_goes_all_the_way():
    used = {each[0].split()[1] for each in RUN if each[0].startswith("legroom")}
    assert {"profile", "plan", "run", "verify", "ways"} <= used
