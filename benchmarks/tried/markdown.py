"""The table for people, `docs/tried.md`.

In go entries, what was recorded and how it was judged; out comes Markdown: totals, a row for each
script, what went wrong grouped by cause, and the scripts that differ from themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.tried.commands import PLAIN, PLAN, PROFILE, RUN, RUN_AT, VERIFY
from benchmarks.tried.judging import Judged, Verdict, groups_of, step_ms
from benchmarks.tried.table import Entry

Records = Mapping[str, Mapping[str, Any]]

_MIB = 1 << 20
_HEAD = (
    "script",
    "trains",
    "loop",
    "peak by profile, MiB",
    "by plan",
    "run predicted, MiB",
    "measured",
    "parameters equal",
    "until the first step, s: plain",
    "run",
    "step, ms: plain",
    "run",
    *(PROFILE, PLAN, VERIFY, RUN),
)


def page_of(
    entries: Sequence[Entry],
    records: Mapping[str, Records],
    judged: Sequence[Judged],
    *,
    about: Sequence[str],
) -> str:
    """The whole page.

    Args:
        entries: In the order of the rows.
        records: By name of the script, then of the run.
        judged: One for each entry.
        about: Lines that say what ran, where, and with which command.
    """
    parts = [
        "# Tried on public scripts",
        _INTRODUCTION,
        "\n".join(f"- {line}" for line in about),
        "## Totals",
        totals_of(entries, records, judged),
        "## Every script",
        _table(_HEAD, [_row(e, records[e.name], j) for e, j in zip(entries, judged, strict=True)]),
        _LEGEND,
        *_causes(judged),
        *_apart(judged),
        *_commits(entries),
    ]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """\
Training scripts that nobody here wrote, unmodified, at tiny sizes and on generated data, run
plainly and under each command. Every parameter is hashed after every step, and the files that are
left are compared. The scripts are not part of this repository;
[benchmarks/tried](../benchmarks/README.md#public-scripts) says how to run the same."""
_LEGEND = """\
Peaks are bytes of the allocator. A step's time is processor time, the median after the first steps;
the time until the first step is the wall's, from the start of the process to the end of the first
update. *Right* means: `profile` answers; `plan` answers within 1 % of that and leaves the files of
a script that was killed at its first trained call; `verify` says equal; `run` ends as the script
does, with its parameters, random states and files. Where `run` was refused, the columns are those
of `run` at the budget that the refusal named."""


def totals_of(
    entries: Sequence[Entry], records: Mapping[str, Records], judged: Sequence[Judged]
) -> str:
    """How many of each command are right, and how good predictions are."""
    repositories = {entry.repository for entry in entries}
    lines = [f"{len(entries)} scripts of {len(repositories)} repositories.", ""]
    rows = []
    for command in (PLAIN, PROFILE, PLAN, VERIFY, RUN, RUN_AT):
        verdicts = [each.verdicts[command] for each in judged if command in each.verdicts]
        if verdicts:
            rows.append([command, str(len(verdicts)), *_counts(verdicts)])
    lines.append(_table(("command", "tried", *_OUTCOMES), rows))
    four = [each for each in judged if all(name in each.verdicts for name in _FOUR)]
    right = sum(all(each.verdicts[name].is_right for name in _FOUR) for each in four)
    lines += ["", f"All four commands are right on {right} of {len(four)} scripts."]
    compared = [each.equal_steps for each in judged if each.equal_steps and each.repeatable]
    equal = sum(same for same, _ in compared)
    lines.append(
        f"Parameters are plain's after {equal} of {sum(steps for _, steps in compared)} steps."
    )
    if errors := [e for name in records if (e := _prediction_error(records[name])) is not None]:
        lines.append(
            f"Measured against predicted peak of `run`, {len(errors)} scripts: "
            f"{100 * median(errors):.2f} % in the median, {100 * max(errors):.2f} % at worst."
        )
    lines += _times(records)
    return "\n".join(lines)


def _times(records: Mapping[str, Records]) -> list[str]:
    """How much later training starts and how much longer a step takes, over all scripts."""
    waits, ratios = {}, {}
    for name, own in records.items():
        plain, run = own.get(PLAIN), _last(own)
        if plain and run and plain["first_step_s"] and run["first_step_s"]:
            waits[name] = run["first_step_s"] - plain["first_step_s"]
        plain_ms, run_ms = step_ms(plain), step_ms(run)
        if plain_ms and run_ms:
            ratios[name] = run_ms / plain_ms
    said = []
    if waits:
        worst = max(waits, key=lambda name: waits[name])
        said.append(
            f"Under `run` the first step ends {median(waits.values()):.1f} s later than plain's in "
            f"the median, {waits[worst]:.1f} s at worst ({worst})."
        )
    if ratios:
        worst = max(ratios, key=lambda name: ratios[name])
        said.append(
            f"A step takes {median(ratios.values()):.2f} times plain's in the median, "
            f"{ratios[worst]:.2f} times at worst ({worst})."
        )
    return said


_FOUR = (PROFILE, PLAN, VERIFY, RUN)
_OUTCOMES = ("right", "refused", "failed", "wrong", "took too long")


def _counts(verdicts: Sequence[Verdict]) -> list[str]:
    return [str(sum(verdict.outcome == name for verdict in verdicts)) for name in _OUTCOMES]


def _prediction_error(records: Records) -> float | None:
    answer = _answer_of_run(records)
    predicted, measured = answer.get("predicted_peak_bytes"), answer.get("measured_peak_bytes")
    return abs(measured - predicted) / predicted if predicted and measured else None


def _last(records: Records) -> Mapping[str, Any] | None:
    return records.get(RUN_AT) or records.get(RUN)


def _answer_of_run(records: Records) -> Mapping[str, Any]:
    return (_last(records) or {}).get("answer") or {}


def _row(entry: Entry, records: Records, judged: Judged) -> list[str]:
    profile = (records.get(PROFILE) or {}).get("answer") or {}
    plan = (records.get(PLAN) or {}).get("answer") or {}
    run, plain = _last(records), records.get(PLAIN)
    answer = _answer_of_run(records)
    equal = "–" if judged.equal_steps is None else "{} of {}".format(*judged.equal_steps)
    return [
        f"{entry.name} ({entry.repository})",
        entry.trains,
        entry.style,
        _mib(profile.get("peak_bytes")),
        _mib(plan.get("plain_peak_bytes")),
        _mib(answer.get("predicted_peak_bytes")),
        _mib(answer.get("measured_peak_bytes")),
        equal,
        _number((plain or {}).get("first_step_s")),
        _number((run or {}).get("first_step_s")),
        _number(step_ms(plain)),
        _number(step_ms(run)),
        *(_mark(judged.verdicts.get(name)) for name in _FOUR[:-1]),
        _mark_of_runs(judged),
    ]


def _mark(verdict: Verdict | None) -> str:
    if verdict is None:
        return "–"
    return verdict.outcome if verdict.is_right else f"{verdict.outcome}: {_cell(verdict.reason)}"


def _mark_of_runs(judged: Judged) -> str:
    first, named = judged.verdicts.get(RUN), judged.verdicts.get(RUN_AT)
    if named is None:
        return _mark(first)
    return f"{_mark(first)}; at the named budget {_mark(named)}"


def _causes(judged: Sequence[Judged]) -> list[str]:
    groups = groups_of(judged)
    if not groups:
        return []
    parts = ["## What went wrong, by cause"]
    for command, causes in groups.items():
        rows = [
            [str(len(names)), key.split(":", 1)[0], _cell(first, 300), ", ".join(names)]
            for key, (first, names) in causes.items()
        ]
        parts += [f"### `{command}`", _table(("scripts", "outcome", "said", "which"), rows)]
    return parts


def _apart(judged: Sequence[Judged]) -> list[str]:
    names = [each.name for each in judged if each.repeatable is False]
    if not names:
        return []
    return [
        "## Differ from themselves",
        "Two plain runs from the same seeds are not equal, so that values are not compared: "
        f"{', '.join(names)}.",
    ]


def _commits(entries: Sequence[Entry]) -> list[str]:
    commits = {entry.repository: entry.commit for entry in entries if entry.commit}
    if not commits:
        return []
    rows = [(name, f"`{commits[name][:12]}`") for name in sorted(commits, key=str.lower)]
    return ["## Repositories", _table(("repository", "commit"), rows)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str, characters: int = 160) -> str:
    one = " ".join(text.split()).replace("|", "/")
    return one if len(one) <= characters else f"{one[: characters - 1]}…"


def _mib(num_bytes: int | None) -> str:
    return "–" if num_bytes is None else f"{num_bytes / _MIB:.2f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"
