"""The table of scripts: which there are and how each is called.

In goes a TOML file; out come entries. All faults of a table are reported together.

    [[script]]
    name = "mnist"                       # of the row; letters, digits, - and _
    repository = "pytorch/examples"      # where it is from
    trains = "CNN on digits"             # for people
    style = "loop"                       # loop, Trainer, Lightning, accelerate, …
    folder = "src/mnist"                 # copied for each run, relative to the folder of scripts
    cwd = "."                            # where it is started, relative to the copy
    script = "main.py"                   # relative to cwd; or `module = "package.train"`
    arguments = ["--epochs", "1"]
    environment = {PYTHONPATH = "{scripts}/stubs"}
    data = [["data/MNIST", "../data/MNIST"]]   # copied too: from the folder of scripts, to cwd
    files = ["*.pt"]                     # compared after a run; without it every file is

`{scripts}` in arguments and environment is the folder of scripts. The commit of each repository is
said once; arguments and made-up data were tried with that one:

    [commits]
    "pytorch/examples" = "77f55b912142e11fcfdf5b530231fb9c52f181e8"
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest and mypy bring it
    import tomli as tomllib


class TableError(Exception):
    """The table of scripts is wrong; says every fault."""


@final
@dataclass(frozen=True, kw_only=True)
class Entry:
    """One script and how it is called.

    Args:
        name: Of the row, and of the folder that it runs in.
        repository: Where it is from.
        folder: What is copied for each run, relative to the folder of scripts.
        script: What is run, relative to `cwd`; empty where `module` is given.
        module: The same as `python -m` takes it.
        cwd: Where it is started, relative to the copy.
        arguments: Its own.
        environment: Variables that it needs.
        data: Pairs of what is copied besides and where to, relative to `cwd`.
        files: Patterns of files to compare after a run; none: all that two plain runs write alike.
        trains: What it trains, for people.
        style: How its loop is written: by hand, Trainer, Lightning, accelerate.
        commit: Of the repository, from the table's `[commits]`; empty where that says none.
    """

    name: str
    repository: str
    folder: str
    script: str = ""
    module: str = ""
    cwd: str = "."
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str]
    data: tuple[tuple[str, str], ...] = ()
    files: tuple[str, ...] = ()
    trains: str = ""
    style: str = "loop"
    commit: str = ""

    @property
    def call(self) -> tuple[str, ...]:
        """What follows `python` or a command of legroom, placeholders included."""
        what = ("-m", self.module) if self.module else (self.script,)
        return (*what, *self.arguments)


def read_table(path: Path, *, only: frozenset[str] = frozenset()) -> tuple[Entry, ...]:
    """The table's entries in its order, or those of these names.

    Raises:
        TableError: The file is not TOML, an entry is wrong, or a name is not in the table.
    """
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise TableError(f"cannot read {path}: {error}") from error
    rows, commits = content.get("script", []), content.get("commits", {})
    faults = _faults_of_commits(commits, {row.get("repository") for row in rows})
    entries: list[Entry] = []
    for number, row in enumerate(rows, 1):
        where = f"script {number} ({row.get('name', 'no name')})"
        found = _faults_of(row)
        faults += [f"{where}: {fault}" for fault in found]
        if not found:
            entries.append(_entry_of(row, commits))
    faults += _faults_of_names([entry.name for entry in entries], only, complete=not faults)
    if not rows:
        faults.append("no [[script]] in it")
    if faults:
        raise TableError(f"{path}:\n" + "\n".join(f"  {fault}" for fault in faults))
    return tuple(entry for entry in entries if not only or entry.name in only)


_KNOWN = frozenset(field.name for field in fields(Entry)) - {"commit"}
_LISTS = ("arguments", "files", "data")


def _faults_of(row: Mapping[str, Any]) -> list[str]:
    faults = [
        f"unknown key {key!r}; known: {', '.join(sorted(_KNOWN))}" for key in row.keys() - _KNOWN
    ]
    faults += [
        f"{key!r} is missing" for key in ("name", "repository", "folder") if not row.get(key)
    ]
    if bool(row.get("script")) == bool(row.get("module")):
        faults.append("exactly one of 'script' and 'module' says what to run")
    if not re.fullmatch(r"[\w-]+", str(row.get("name", "x"))):
        faults.append(f"name {row['name']!r} may have letters, digits, - and _ only")
    faults += [f"{key!r} is a list" for key in _LISTS if not isinstance(row.get(key, []), list)]
    for key in ("folder", "cwd", "script"):
        if Path(str(row.get(key, "."))).is_absolute():
            faults.append(f"{key!r} is relative, not {row[key]!r}")
    return faults


def _faults_of_commits(commits: Mapping[str, Any], used: set[str]) -> list[str]:
    faults = [
        f"commit {commit!r} of {name!r} is not 40 hexadecimal digits"
        for name, commit in commits.items()
        if not re.fullmatch("[0-9a-f]{40}", str(commit))
    ]
    return faults + [f"no script is from {name!r} of [commits]" for name in commits.keys() - used]


def _faults_of_names(names: list[str], only: frozenset[str], *, complete: bool) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    faults = [f"name {name!r} is there twice" for name in twice]
    if complete:
        faults += [f"no script is named {name!r}" for name in sorted(only - set(names))]
    return faults


def _entry_of(row: Mapping[str, Any], commits: Mapping[str, str]) -> Entry:
    given = {**row, "commit": commits.get(row["repository"], "")}
    given["arguments"] = tuple(str(each) for each in row.get("arguments", ()))
    given["files"] = tuple(row.get("files", ()))
    given["data"] = tuple((str(source), str(target)) for source, target in row.get("data", ()))
    given["environment"] = {key: str(value) for key, value in row.get("environment", {}).items()}
    return Entry(**given)
