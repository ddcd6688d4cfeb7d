"""Runs the benchmarks and writes their results; the only entry point.

In go a theme and names of cases; out come `results/<theme>_<device>_<yyyymm>_<who>.json` and the
same as Markdown, and as a page and charts where the theme has them. Every measurement runs in a
process of its own. What was measured is stored at once: a run that was interrupted goes on where it
was.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import cases, peers, themes
from benchmarks.processes import ROOT, answer_of
from benchmarks.progress import Told
from benchmarks.store import FOLDER, Store, fingerprint
from benchmarks.themes import Run, Theme
from legroom.errors import UnknownNameError

RESULTS = Path(__file__).parent / "results"
_ALL = "all"
_PLACES = ("--folder", "--store")
_DEPENDS_ON = ("src/legroom", "benchmarks/cases", "benchmarks/peers")
"""What a measurement is undone by, beside the modules in this folder."""


def main() -> None:
    """Measure, print and save."""
    parser = _parser()
    options = parser.parse_args()
    themes_asked = themes.names() if options.theme == _ALL else (options.theme,)
    try:
        for case in options.cases.split(",") if options.cases else ():
            cases.load(case)
        for name in options.peers.split(",") if options.peers else ():
            peers.get(name)
    except (cases.UnknownCaseError, UnknownNameError) as error:
        parser.error(str(error))
    about = _about()
    run = Run(
        store=Store(options.store, fresh=options.fresh),
        commit=about["commit"],
        quick=options.quick,
        size=options.size,
        peers=tuple(options.peers.split(",")) if options.peers else (),
        rounds=options.rounds,
        threads=options.threads,
    )
    for name in themes_asked:
        theme = themes.get(name).only(options.parts.split(",") if options.parts else None)
        if options.quick and not theme.quick_cases:
            print(f"{theme.name}: has no quick run, and is left out")
            continue
        measured = _measure(theme, _cases_of(theme, options), run)
        result = {"about": {**about, **theme.about, **theme.about_of(run)}, **measured}
        quick = "-quick" if options.quick else ""
        file = f"{theme.name}{quick}_cpu_{datetime.date.today():%Y%m}_{options.who}"
        stem = options.folder / file
        if options.add and Path(f"{stem}.json").exists():
            old = json.loads(Path(f"{stem}.json").read_text())
            result = merged(old, result, theme.merge)
        _save(theme, result, stem)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("theme", nargs="?", default=_ALL, choices=(*themes.names(), _ALL))
    parser.add_argument("--cases", default="", help="names, by commas (default: the theme's)")
    parser.add_argument("--parts", default="", help="of the theme, by commas (default: all)")
    parser.add_argument("--add", action="store_true", help="keep what the result file has besides")
    parser.add_argument("--who", default="maintainers", help="who measured (in the file's name)")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where to write")
    parser.add_argument("--fresh", action="store_true", help="measure anew what is stored already")
    parser.add_argument("--store", type=Path, default=FOLDER, help="where unfinished runs are kept")
    contest = parser.add_argument_group("contest")
    contest.add_argument("--quick", action="store_true", help="a part that takes minutes")
    contest.add_argument("--peers", default="", help="names, by commas (default: all)")
    contest.add_argument("--size", default="small", help="size of the cases (default: small)")
    contest.add_argument("--rounds", type=int, default=0, help="turns of each contestant")
    contest.add_argument("--threads", type=int, default=1, help="of PyTorch (default: 1)")
    return parser


def merged(
    old: dict[str, Any],
    new: dict[str, Any],
    merge: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] = lambda old, new: new,
) -> dict[str, Any]:
    """What was measured before, and over it what was measured now; commits and commands of both.

    Args:
        merge: What becomes of two answers to the same part of a case.
    """
    about = {**old["about"], **new["about"]}
    for key in ("commit", "command"):
        said = [*old["about"][key].split("; "), new["about"][key]]
        about[key] = "; ".join(dict.fromkeys(said))
    rows: dict[str, dict[str, Any]] = {name: dict(row) for name, row in old["cases"].items()}
    for name, row in new["cases"].items():
        kept = rows.setdefault(name, {})
        for part, answer in row.items():
            kept[part] = merge(kept[part], answer) if part in kept else answer
    singles = {**old.get("singles", {}), **new.get("singles", {})}
    return {"about": about, "cases": rows, **({"singles": singles} if singles else {})}


def _cases_of(theme: Theme, options: argparse.Namespace) -> tuple[str, ...]:
    if options.cases:
        return tuple(options.cases.split(","))
    return theme.quick_cases if options.quick else theme.default_cases or cases.names()


def _save(theme: Theme, result: dict[str, Any], stem: Path) -> None:
    text = theme.write_markdown(result)
    print(text)
    stem.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n")
    Path(f"{stem}.md").write_text(text)
    print(f"wrote {stem}.json and .md")
    if theme.write_page is not None:
        Path(f"{stem}.html").write_text(theme.write_page(result), encoding="utf-8")
        print(f"wrote {stem}.html")
    for end, chart in (theme.write_charts(result) if theme.write_charts else {}).items():
        file = stem.with_name(f"{theme.name}_{end}.svg")
        file.write_text(chart, encoding="utf-8")
        print(f"wrote {file}")


def _measure(theme: Theme, names: tuple[str, ...], run: Run) -> dict[str, Any]:
    rows: dict[str, dict[str, Any]] = {name: {} for name in names}
    singles: dict[str, Any] = {}
    each = theme.num_parts(run) if theme.measure else len(theme.case_parts)
    with Told(theme.name, total=len(names) * each + len(theme.single_parts)) as told:
        for number, name in enumerate(names):
            if theme.measure is not None:

                def tell(what: str, done: int, total: int, before: int = number * each) -> None:
                    del total
                    told.done(what, before + done)

                (part,) = theme.case_parts
                rows[name][part] = theme.measure(name, replace(run, on_progress=tell))
                continue
            for place, part in enumerate(theme.case_parts):
                rows[name][part] = _answer(theme, run.store, name, part)
                told.done(f"{name}: {part}", number * each + place + 1)
        for place, part in enumerate(theme.single_parts):
            singles[part] = _answer(theme, run.store, part)
            told.done(part, len(names) * each + place + 1)
    return {"cases": rows, **({"singles": singles} if singles else {})}


def _answer(theme: Theme, store: Store, *arguments: str) -> dict[str, Any]:
    """What the theme's module answers, or what it answered before."""
    place = ".".join((theme.name, *arguments))
    modules = sorted(Path(__file__).parent.glob("*.py"))
    key = fingerprint([*(ROOT / each for each in _DEPENDS_ON), *modules], theme.module, *arguments)
    answer = store.get(place, key)
    if answer is None:
        answer = answer_of(theme.module, *arguments)
        store.put(place, key, answer)
    return dict(answer)


def command_of(arguments: list[str]) -> str:
    """What to type for the same measurements: without the places on this machine."""
    kept, is_place = [], False
    for each in arguments:
        name = each.partition("=")[0]
        if not is_place and name not in _PLACES:
            kept.append(shlex.quote(each))
        is_place = each in _PLACES
    return " ".join(["python -m benchmarks.run", *kept])


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
        "command": command_of(sys.argv[1:]),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
    }


if __name__ == "__main__":
    main()
