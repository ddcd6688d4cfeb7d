"""The same runs as lines for a shell, for looking into one script.

In go an entry and jobs; out come lines that copy the script's folder and call it as the harness
does, without the recorder.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from benchmarks.tried.commands import Job, Setup, arguments_of, environment_of
from benchmarks.tried.table import Entry

_NEEDED = (
    *("PYTHONPATH", "OMP_NUM_THREADS", "PYTHONHASHSEED"),
    *("MPLBACKEND", "HF_HUB_OFFLINE", "WANDB_MODE"),
)


def lines_of(entry: Entry, jobs: Iterable[Job], setup: Setup, *, scratch: Path) -> list[str]:
    """A line that makes a fresh copy and goes there, then one for each job.

    Run the first again before each of the others: what a script wrote would be found by the next.
    """
    tree = scratch / entry.name / "tree"
    cwd = tree / "work" / entry.cwd
    copies = [f"rm -rf {_quoted(tree)}", f"mkdir -p {_quoted(tree)}"]
    copies.append(f"cp -r {_quoted(setup.scripts / entry.folder)} {_quoted(tree / 'work')}")
    for source, target in entry.data:
        copies += _copy_of(setup.scripts / source, cwd / target)
    copies.append(f"cd {_quoted(cwd)}")
    lines = [f"# {entry.name}: a fresh copy, then any of the commands", " && ".join(copies)]
    for job in jobs:
        if job.mode != "border":
            lines.append(_line(job, entry, setup, home=scratch / entry.name / "home"))
    return list(dict.fromkeys(lines))


def _copy_of(source: Path, target: Path) -> list[str]:
    if source.is_dir():
        return [f"mkdir -p {_quoted(target)}", f"cp -r {_quoted(source)}/. {_quoted(target)}"]
    return [f"mkdir -p {_quoted(target.parent)}", f"cp {_quoted(source)} {_quoted(target)}"]


def _line(job: Job, entry: Entry, setup: Setup, *, home: Path) -> str:
    environment = environment_of(job, entry, setup, home=home, record=home)
    paths = environment["PYTHONPATH"].split(os.pathsep)[1:]  # the first is the recorder's
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    names = dict.fromkeys((*_NEEDED, *entry.environment))
    variables = [f"{name}={environment[name]}" for name in names if environment[name]]
    call = arguments_of(job, entry, setup, Path("../../answer.json"))
    return shlex.join(["env", *variables, *call])


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
