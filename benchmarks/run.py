"""Runs the benchmarks and writes their results; the only entry point.

In go a theme and names of cases; out come `results/<theme>_<device>_<yyyymm>_<who>.json` and the
same as Markdown. Every measurement runs in a process of its own, one after the other.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import cases, themes
from benchmarks.processes import ROOT, answer_of
from benchmarks.themes import Theme

RESULTS = Path(__file__).parent / "results"
_ALL = "all"


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("theme", nargs="?", default=_ALL, choices=(*themes.names(), _ALL))
    parser.add_argument("--cases", default=",".join(cases.names()), help="names, by commas")
    parser.add_argument("--parts", default="", help="of the theme, by commas (default: all)")
    parser.add_argument("--add", action="store_true", help="keep what the result file has besides")
    parser.add_argument("--who", default="maintainers", help="who measured (in the file's name)")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where to write")
    options = parser.parse_args()
    names = options.cases.split(",")
    try:
        for case in names:
            cases.load(case)
    except cases.UnknownCaseError as error:
        parser.error(str(error))
    about = _about()
    for name in themes.names() if options.theme == _ALL else (options.theme,):
        theme = themes.get(name).only(options.parts.split(",") if options.parts else None)
        result = {"about": {**about, **theme.about}, **_measure(theme, names)}
        stem = options.folder / f"{theme.name}_cpu_{datetime.date.today():%Y%m}_{options.who}"
        if options.add and Path(f"{stem}.json").exists():
            result = merged(json.loads(Path(f"{stem}.json").read_text()), result)
        _save(result, theme.write_markdown(result), stem)


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """What was measured before, and over it what was measured now; commits and commands of both."""
    about = {**old["about"], **new["about"]}
    for key in ("commit", "command"):
        said = [*old["about"][key].split("; "), new["about"][key]]
        about[key] = "; ".join(dict.fromkeys(said))
    rows = {name: old["cases"].get(name, {}) for name in (*old["cases"], *new["cases"])}
    rows = {name: {**row, **new["cases"].get(name, {})} for name, row in rows.items()}
    singles = {**old.get("singles", {}), **new.get("singles", {})}
    return {"about": about, "cases": rows, **({"singles": singles} if singles else {})}


def _save(result: dict[str, Any], text: str, stem: Path) -> None:
    print(text)
    stem.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n")
    Path(f"{stem}.md").write_text(text)
    print(f"wrote {stem}.json and .md")


def _measure(theme: Theme, names: list[str]) -> dict[str, Any]:
    rows: dict[str, dict[str, Any]] = {name: {} for name in names}
    singles: dict[str, Any] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn()) as progress:
        total = len(names) * len(theme.case_parts) + len(theme.single_parts)
        task = progress.add_task("", total=total)
        for name in names:
            for part in theme.case_parts:
                progress.update(task, description=f"{theme.name}, {name}: {part}")
                rows[name][part] = answer_of(theme.module, name, part)
                progress.advance(task)
        for part in theme.single_parts:
            progress.update(task, description=f"{theme.name}: {part}")
            singles[part] = answer_of(theme.module, part)
            progress.advance(task)
    return {"cases": rows, **({"singles": singles} if singles else {})}


def _about() -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "date": f"{datetime.date.today():%Y-%m-%d}",
        "commit": commit.stdout.strip(),
        "command": " ".join(["python -m benchmarks.run", *sys.argv[1:]]),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
    }


if __name__ == "__main__":
    main()
