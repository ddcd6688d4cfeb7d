"""The entry point: run the scripts of a table, store as it goes, and write what came of it.

In go a table and a folder of checked-out scripts; out come a progress line for each run, a JSON
file with everything, and a page for people. A run that was stored is not repeated unless something
that it depends on has changed: legroom's code for its commands, the entry, the recorder, the
options.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.progress import Told
from benchmarks.store import FOLDER, Store
from benchmarks.tried.by_hand import lines_of
from benchmarks.tried.commands import (
    COMMANDS,
    DEFAULT_BUDGET,
    PLAIN,
    RUN,
    RUN_AT,
    Job,
    Setup,
    jobs_of,
    named_budget,
    run_at,
)
from benchmarks.tried.judging import Judged, judge
from benchmarks.tried.markdown import page_of, totals_of
from benchmarks.tried.running import Record, run_once
from benchmarks.tried.table import Entry, TableError, read_table

_LEGROOM = Path(__file__).parents[2] / "src"
_EPILOG = """
examples:
  python -m benchmarks.tried benchmarks/tried/scripts.toml --scripts ~/scripts
  python -m benchmarks.tried TABLE --scripts ~/scripts --only mnist,vae --commands plain,run
  python -m benchmarks.tried TABLE --scripts ~/scripts --legroom ../other/src --json out.json
  python -m benchmarks.tried TABLE --scripts ~/scripts --only mnist --by-hand

The folder of scripts holds what the table names, checked out by you, and the data that scripts
read. Each run starts from a fresh copy, so nothing there is changed. Interrupt at will: the
same command goes on where it was. `--by-hand` prints the lines that do the same in a shell.
"""


def main() -> None:
    """Run, judge, write."""
    parser = _parser()
    options = parser.parse_args()
    only = frozenset(options.only.split(",")) if options.only else frozenset()
    commands = tuple(options.commands.split(","))
    if unknown := sorted(set(commands) - set(COMMANDS)):
        parser.error(f"unknown command {unknown[0]!r}; known: {', '.join(COMMANDS)}")
    try:
        entries = read_table(options.table, only=only)
    except TableError as error:
        parser.error(str(error))
    setup = Setup(
        python=options.python.absolute(),
        legroom=options.legroom.absolute(),
        scripts=options.scripts.absolute(),
        threads=options.threads,
    )
    budget = ("--budget", options.budget) if options.budget else DEFAULT_BUDGET
    jobs = jobs_of(commands, budget)
    if options.by_hand:
        for entry in entries:
            print("\n".join(lines_of(entry, jobs, setup, scratch=options.scratch.absolute())), "\n")
        return
    harness = _Harness(setup, options)
    records = harness.run(entries, jobs)
    judged = [judge(entry, records[entry.name]) for entry in entries]
    print("\n" + totals_of(entries, records, judged))
    about = _about(setup, budget)
    if options.json:
        _save_json(options.json, entries, records, judged, about)
    if options.markdown:
        options.markdown.write_text(page_of(entries, records, judged, about=about))


class _Harness:
    """Runs jobs that are not stored yet, one after the other."""

    def __init__(self, setup: Setup, options: argparse.Namespace) -> None:
        self._setup, self._limit_s = setup, options.timeout
        self._store = Store(options.store, fresh=options.fresh)
        self._scratch = options.scratch.absolute()
        self._code = digest_of(sorted(setup.legroom.rglob("*.py")))
        self._recorder = digest_of(sorted(Path(__file__).parent.rglob("*.py"), key=str), RUNNERS)

    def run(
        self, entries: tuple[Entry, ...], jobs: tuple[Job, ...]
    ) -> dict[str, dict[str, Record]]:
        """Everything that was recorded, by script and run; goes on after failures."""
        records: dict[str, dict[str, Record]] = {entry.name: {} for entry in entries}
        with Told("tried", total=len(entries) * len(jobs)) as told:
            over = 0
            for entry in entries:
                own = records[entry.name]
                for job in jobs:
                    if _is_hopeless(own):
                        continue
                    own[job.name] = self._one(job, entry)
                    if job.name == RUN and (at := _named_by(own[RUN])):
                        own[RUN_AT] = self._one(run_at(at), entry)
                    over += 1
                    told.done(f"{entry.name} {job.name}: {_in_short(own[job.name])}", over)
        return records

    def _one(self, job: Job, entry: Entry) -> Record:
        name = f"tried-{entry.name}-{job.name}"
        parts = (repr(entry), repr(job), self._recorder, "" if job.is_plain else self._code)
        fingerprint = hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()
        stored = self._store.get(name, fingerprint)
        if stored is None or (stored["exit"] is None and stored["seconds"] < self._limit_s - 1):
            stored = run_once(job, entry, self._setup, scratch=self._scratch, limit_s=self._limit_s)
            self._store.put(name, fingerprint, stored)
        return dict(stored)


RUNNERS = ("sitecustomize.py", "running.py", "commands.py")
"""What a record depends on; how it is judged and shown may change without running again."""


def digest_of(files: Iterable[Path], names: tuple[str, ...] = ()) -> str:
    """A digest of the text of these files, or of those among them that are named so."""
    digest = hashlib.blake2b(digest_size=12)
    for file in files:
        if not names or file.name in names:
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _is_hopeless(own: dict[str, Record]) -> bool:
    """Whether the script fails by itself before it trains: then there is nothing to try."""
    plain = own.get(PLAIN)
    return plain is not None and plain["exit"] != 0 and not plain["steps"]


def _named_by(run: Record) -> str | None:
    return named_budget(run["said"]) if run["exit"] not in (0, None) else None


def _in_short(record: Record) -> str:
    code = "took too long" if record["exit"] is None else f"exit {record['exit']}"
    return f"{code}, {record['seconds']:.0f} s, {len(record['steps'])} steps"


def _about(setup: Setup, budget: tuple[str, ...]) -> list[str]:
    return [
        f"command: `{' '.join(['python', '-m', 'benchmarks.tried', *_public(sys.argv[1:])])}`",
        f"budget of `run` and `verify`: `{' '.join(budget)}`",
        f"machine: {platform.machine()}, {os.cpu_count()} cores, {setup.threads} thread",
    ]


def _public(arguments: list[str]) -> list[str]:
    """Arguments without where things are on this machine."""
    return [Path(each).name if each.startswith(("/", "~")) else each for each in arguments]


def _save_json(
    path: Path,
    entries: tuple[Entry, ...],
    records: dict[str, dict[str, Record]],
    judged: list[Judged],
    about: list[str],
) -> None:
    content: dict[str, Any] = {"schema": "legroom.tried/1", "about": about, "scripts": []}
    for entry, verdicts in zip(entries, judged, strict=True):
        content["scripts"].append(
            {
                "entry": vars(entry),
                "repeatable": verdicts.repeatable,
                "equal_steps": verdicts.equal_steps,
                "verdicts": {name: vars(each) for name, each in verdicts.verdicts.items()},
                "runs": records[entry.name],
            }
        )
    path.write_text(json.dumps(content, indent=1))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tried",
        description="Run public training scripts plain and under legroom's commands, and compare.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("table", type=Path, help="TOML file of scripts and their arguments (see tried/table.py)")
    add("--scripts", type=Path, required=True, metavar="FOLDER", help="checked-out scripts, data")
    add("--only", default="", metavar="NAME,…", help="these scripts; all by default")
    add(
        "--commands",
        default=",".join(COMMANDS),
        metavar="NAME,…",
        help="some of %(default)s; plain is what the others are compared with",
    )
    add(
        "--budget",
        default="",
        metavar="SIZE",
        help=f"of run and verify, as 2GiB or 60%%; default: {' '.join(DEFAULT_BUDGET)}".replace(
            "50%", "50%%"
        ),
    )
    add(
        "--legroom",
        type=Path,
        default=_LEGROOM,
        metavar="FOLDER",
        help="source tree to try, which has the package in it; default: the one beside this",
    )
    add(
        "--python",
        type=Path,
        default=Path(sys.executable),
        metavar="FILE",
        help="interpreter that has what the scripts import; default: the one that runs this",
    )
    add("--timeout", type=float, default=300, metavar="SECONDS", help="of each run; %(default)g")
    add("--threads", type=int, default=1, help="of OpenMP; %(default)s")
    add("--json", type=Path, metavar="FILE", help="write everything that was recorded and judged")
    add("--markdown", type=Path, metavar="FILE", help="write the table, as docs/tried.md")
    add(
        "--scratch",
        type=Path,
        default=Path(tempfile.gettempdir()) / "legroom-tried",
        metavar="FOLDER",
        help="where scripts run; each run begins with an empty one",
    )
    add("--store", type=Path, default=FOLDER, metavar="FOLDER", help="where runs are stored")
    add("--fresh", action="store_true", help="run again what is stored")
    add("--by-hand", action="store_true", help="print the command lines instead of running them")
    return parser


if __name__ == "__main__":
    main()
