"""Runs one script once, in a folder of its own, and says what came of it.

In go a job and an entry; out comes a record that serialises: the exit code, the times, what was
said, what legroom answered, each step of the training, and the files that are left. Every run of a
script starts from a fresh copy at the same path, so that paths in its files are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.tried.commands import Job, Setup, arguments_of, environment_of
from benchmarks.tried.table import Entry

Record = dict[str, Any]

_SAID_CHARACTERS = 6000
_MANY_BYTES = 1 << 30


def run_once(job: Job, entry: Entry, setup: Setup, *, scratch: Path, limit_s: float) -> Record:
    """Copy the script's folder, run it, and collect what came of it.

    The record has `exit` (None if it was ended after `limit_s`), `seconds`, `first_step_s` (from
    the start of the process; None without steps), `steps`, `other_steps` (in further processes),
    `files` (digest by path), `said` and `printed` (the ends of stderr and stdout), `answer`
    (what legroom wrote as JSON), `met_border` (of plain runs until the border).
    """
    place = scratch / entry.name
    tree, home, record = place / "tree", place / "home", place / "record"
    answer = place / "answer.json"
    shutil.rmtree(place, ignore_errors=True)
    for folder in (tree, home, record):
        folder.mkdir(parents=True)
    work = tree / "work"
    shutil.copytree(setup.scripts / entry.folder, work, symlinks=True)
    cwd = work / entry.cwd
    for source, target in entry.data:
        _copy(setup.scripts / source, cwd / target)
    line = arguments_of(job, entry, setup, answer)
    environment = environment_of(job, entry, setup, home=home, record=record)
    started_s, began_s = time.time(), time.monotonic()
    code = _wait(line, cwd, environment, place, limit_s)
    seconds = time.monotonic() - began_s
    steps, others = steps_of(record)
    return {
        "exit": code,
        "seconds": seconds,
        "first_step_s": steps[0]["at_s"] - started_s if steps else None,
        "steps": steps,
        "other_steps": others,
        "files": digests(tree),
        "said": _portable(_end_of(place / "stderr"), setup, tree),
        "printed": _portable(_end_of(place / "stdout"), setup, tree),
        "answer": _answer_of(answer),
        "met_border": (record / "border").exists(),
    }


def steps_of(folder: Path) -> tuple[list[Record], int]:
    """Steps of the process that took most, and how many others took."""
    found = [
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted(folder.glob("steps-*.jsonl"))
    ]
    found.sort(key=len, reverse=True)
    return (found[0], sum(len(each) for each in found[1:])) if found else ([], 0)


def digests(tree: Path) -> dict[str, str]:
    """A digest of each file below, by its path there."""
    found = {}
    for file in sorted(tree.rglob("*")):
        if file.is_symlink():
            found[file.relative_to(tree).as_posix()] = f"link to {os.readlink(file)}"
        elif file.is_file():
            content = file.read_bytes() if file.stat().st_size < _MANY_BYTES else b"large"
            found[file.relative_to(tree).as_posix()] = hashlib.blake2b(
                content, digest_size=8
            ).hexdigest()
    return found


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)


def _wait(
    line: tuple[str, ...], cwd: Path, environment: dict[str, str], place: Path, limit_s: float
) -> int | None:
    """The exit code; None if it took more than the limit, and was ended with what it started."""
    with (place / "stdout").open("wb") as stdout, (place / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            line,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end_group(process.pid)
            process.wait()


def _end_group(group: int) -> None:
    """End what the process started too; it is the leader of a group of its own."""
    with contextlib.suppress(ProcessLookupError):  # nothing of it is left: the usual case
        os.killpg(group, signal.SIGKILL)


def _end_of(path: Path) -> str:
    text = path.read_text(errors="replace")
    if len(text) <= 2 * _SAID_CHARACTERS:
        return text
    return f"{text[:_SAID_CHARACTERS]}\n[…]\n{text[-_SAID_CHARACTERS:]}"


def _portable(text: str, setup: Setup, tree: Path) -> str:
    """The text without where things are on this machine."""
    for folder, name in ((tree, "{copy}"), (setup.scripts, "{scripts}"), (setup.legroom, "{src}")):
        text = text.replace(str(folder), name)
    return text


_LONG = ("sources", "timeline", "lines", "modules", "events", "tensors", "decisions", "operations")


def _answer_of(path: Path) -> Record | None:
    """What legroom wrote, without its long lists; None if it wrote nothing whole."""
    try:
        answer = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return {key: value for key, value in answer.items() if key not in _LONG}
