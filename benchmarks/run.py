"""Runs the benchmarks and writes their results; the only entry point.

In go names of cases; out come `results/<theme>_<device>_<yyyymm>_<who>.json` and the same as
Markdown. Every measurement runs in a process of its own, one after the other.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import cases
from benchmarks.meter import PARTS, REPETITIONS, WARMUP_STEPS
from legroom.meter import Kind

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--cases", default=",".join(cases.names()), help="names, by commas")
    parser.add_argument("--who", default="maintainers", help="who measured (in the file's name)")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where to write")
    options = parser.parse_args()
    names = options.cases.split(",")
    try:
        for name in names:
            cases.load(name)
    except cases.UnknownCaseError as error:
        parser.error(str(error))
    rows = _measure(names)
    result = {"about": _about(), "cases": rows}
    text = _markdown(result)
    print(text)
    options.folder.mkdir(parents=True, exist_ok=True)
    stem = f"meter_cpu_{datetime.date.today():%Y%m}_{options.who}"
    (options.folder / f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.folder / f"{stem}.md").write_text(text)
    print(f"wrote {options.folder / stem}.json and .md")


def _measure(names: list[str]) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {name: {} for name in names}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn()) as progress:
        task = progress.add_task("", total=len(names) * len(PARTS))
        for name in names:
            for part in PARTS:
                progress.update(task, description=f"{name}: {part}")
                rows[name][part] = _in_own_process(name, part)
                progress.advance(task)
    return rows


def _in_own_process(name: str, part: str) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.meter", name, part],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        return {"error": (run.stderr.strip().splitlines() or ["no output"])[-1]}
    return dict(json.loads(run.stdout.splitlines()[-1]))


def _about() -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "date": f"{datetime.date.today():%Y-%m-%d}",
        "commit": commit.stdout.strip(),
        "command": "python -m benchmarks.run",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "warmup_steps": WARMUP_STEPS,
        "repetitions": REPETITIONS,
    }


def _markdown(result: dict[str, Any]) -> str:
    about, rows = result["about"], result["cases"]
    lines = [
        "# Is the meter right, and what does it cost?",
        "",
        f"{about['date']} · commit {about['commit']} · torch {about['torch']} · Python "
        f"{about['python']} · {about['machine']} · `{about['command']}`. Peaks are of the third "
        f"step of each case in size `small`; times are medians of {about['repetitions']}, plain "
        "and recorded steps taking turns.",
        "",
        "## Memory at the peak by kind, MiB",
        "",
        *_table(["case", *(kind.title for kind in Kind), "**sum**"], _kind_rows(rows)),
        "",
        "## The peak against the allocator's own count and against torch's MemTracker",
        "",
        "*Truth* is the running sum of the allocator's events since before the model was built. "
        "MemTracker is told of models, optimizers and the live input tensors; it runs a dispatch "
        "mode, which keeps autograd from working in place, and it does not see scratch memory "
        "inside operations. The last column leaves our row of workspace out of the comparison.",
        "",
        *_table(
            [
                "case",
                "legroom, bytes",
                "truth, bytes",
                "difference",
                "MemTracker",
                "difference",
                "without workspace",
            ],
            _truth_rows(rows),
        ),
        "",
        "## Balance and places",
        "",
        *_table(
            [
                "case",
                "moments",
                "out of balance",
                "untracked",
                "stash with a place",
                "time with a line",
                "resident growth, MiB",
                "findings",
            ],
            _place_rows(rows),
        ),
        "",
        "## What recording costs",
        "",
        *_table(
            [
                "case",
                "plain ms",
                "(spread)",
                "recorded ms",
                "(spread)",
                "ratio",
                "plain after/before",
            ],
            _cost_rows(rows),
        ),
        "",
    ]
    return "\n".join(lines)


def _table(head: list[str], body: list[list[str]]) -> list[str]:
    rule = ["---", *("--:" for _ in head[1:])]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *body)]


def _mib(count: float) -> str:
    return f"{count / 2**20:.1f}"


def _kind_rows(rows: dict[str, Any]) -> list[list[str]]:
    body = []
    for name, row in rows.items():
        seen = row["profile"]
        if "error" in seen:
            body.append([name, seen["error"]])
            continue
        kinds = [_mib(seen["kinds"][kind.value]) for kind in Kind]
        body.append([name, *kinds, f"**{_mib(seen['kinds_sum_bytes'])}**"])
    return body


def _truth_rows(rows: dict[str, Any]) -> list[list[str]]:
    body = []
    for name, row in rows.items():
        if "error" in row["profile"] or "error" in row["truth"]:
            continue
        ours, truth, peer = (
            row["profile"]["peak_bytes"],
            row["truth"]["peak_bytes"],
            row["memtracker"],
        )
        other = [peer.get("error", "")[:60], "–", "–"]
        if "peak_bytes" in peer:
            seen = peer["peak_bytes"]
            bare = ours - row["profile"]["kinds"][Kind.WORKSPACE.value]
            other = [f"{seen:,}", *(f"{100 * (seen / each - 1):+.2f} %" for each in (ours, bare))]
        body.append([name, f"{ours:,}", f"{truth:,}", f"{ours - truth:,}", *other])
    return body


def _place_rows(rows: dict[str, Any]) -> list[list[str]]:
    return [
        [
            name,
            str(seen["num_moments"]),
            str(seen["num_unbalanced_moments"]),
            f"{100 * seen['untracked_share']:.2f} %",
            f"{100 * seen['stash_with_place']:.1f} %",
            f"{100 * seen['time_with_line']:.1f} %",
            _mib(seen["resident_peak_bytes"] or 0),
            str(len(seen["findings"])),
        ]
        for name, seen in ((name, row["profile"]) for name, row in rows.items())
        if "error" not in seen
    ]


def _cost_rows(rows: dict[str, Any]) -> list[list[str]]:
    body, ratios = [], []
    for name, row in rows.items():
        cost = row["overhead"]
        if "error" in cost:
            body.append([name, cost["error"]])
            continue
        ratios.append(cost["ratio"])
        spreads = [
            "–".join(f"{v:.0f}" for v in cost[k]) for k in ("plain_spread_ms", "recorded_spread_ms")
        ]
        body.append(
            [
                name,
                f"{cost['plain_ms']:.0f}",
                spreads[0],
                f"{cost['recorded_ms']:.0f}",
                spreads[1],
                f"{cost['ratio']:.2f}",
                f"{cost['after_ratio']:.2f}",
            ]
        )
    if ratios:
        body.append(["**median**", "", "", "", "", f"**{statistics.median(ratios):.2f}**", ""])
    return body


if __name__ == "__main__":
    main()
