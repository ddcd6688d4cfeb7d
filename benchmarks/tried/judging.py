"""Whether each command did right by a script: pure functions of what was recorded.

In go the records of one script's runs; out comes a verdict for each command, with one sentence that
says why where it is not right.

Note [Right]
  1. `profile` is right if it exits with 0 and says a peak.
  2. `plan` is right if it exits with 0, its plain peak is within 1 % of `profile`'s, and the files
     that it leaves are those that the plain script leaves when it is killed at its first trained
     call.
  3. `run` is right if it ends as the plain script does, with the same parameters and random states
     after every step and the same files, those apart that two plain runs write differently.
  4. `verify` is right if it says that both trainings are equal.
  5. A script whose plain runs differ is listed apart: of it, only what needs no comparison of
     values is judged.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, final

from benchmarks.tried.commands import AGAIN, BORDER, PLAIN, PLAN, PROFILE, RUN, RUN_AT, VERIFY
from benchmarks.tried.table import Entry

Record = Mapping[str, Any]

PEAK_TOLERANCE = 0.01
RIGHT, REFUSED, FAILED, WRONG, ENDLESS = "right", "refused", "failed", "wrong", "took too long"


@final
@dataclass(frozen=True)
class Verdict:
    """What one command did.

    Args:
        outcome: `right`; `refused`: legroom said no in a sentence; `failed`: a traceback, a signal;
            `wrong`: it answered and the answer is not right; `took too long`.
        reason: One sentence; empty where it is right.
    """

    outcome: str
    reason: str = ""

    @property
    def is_right(self) -> bool:
        """Whether there is nothing to say."""
        return self.outcome == RIGHT


@final
@dataclass(frozen=True, kw_only=True)
class Judged:
    """One script: whether it can be compared with itself, and the verdict on each command that ran.

    Args:
        repeatable: Two plain runs are equal in every step; None if plain did not run.
        trained: Steps of the plain run.
        equal_steps: Steps at which parameters under `run` are plain's, and how many were compared.
        verdicts: By name of the command.
    """

    name: str
    repeatable: bool | None
    trained: int
    equal_steps: tuple[int, int] | None
    verdicts: Mapping[str, Verdict]


def judge(entry: Entry, records: Mapping[str, Record]) -> Judged:
    """Judge everything that ran of this script."""
    plain, again = records.get(PLAIN), records.get(AGAIN)
    border = records.get(BORDER)
    repeatable = None
    if plain is not None and again is not None:
        repeatable = _differs(plain, again) is None
    judges = {
        PLAIN: lambda: _judge_plain(plain, met_border=bool(border and border["met_border"])),
        PROFILE: lambda: _judge_profile(records[PROFILE]),
        PLAN: lambda: _judge_plan(records[PLAN], records, entry),
        VERIFY: lambda: _judge_verify(records[VERIFY], repeatable=repeatable is not False),
        RUN: lambda: _judge_run(records[RUN], records, entry, repeatable=repeatable is not False),
        RUN_AT: lambda: _judge_run(
            records[RUN_AT], records, entry, repeatable=repeatable is not False
        ),
    }
    return Judged(
        name=entry.name,
        repeatable=repeatable,
        trained=len(plain["steps"]) if plain else 0,
        equal_steps=_equal_steps(plain, _last_run(records)),
        verdicts={name: decide() for name, decide in judges.items() if name in records},
    )


def cause_of(said: str) -> str:
    """The one line of stderr that says what went wrong: legroom's own, or a traceback's last.

    Of a chain of exceptions the first is the cause.
    """
    lines = said.splitlines()
    own = [line for line in lines if line.startswith("legroom: ")]
    if own and not own[-1].startswith("legroom: warning"):
        return own[-1]
    for start, line in enumerate(lines):
        if line.lstrip("│ ").startswith("Traceback (most recent call last)"):
            for after in lines[start + 1 :]:
                if re.match(
                    r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|\w)(?::|$)", after
                ):
                    return after
    return next((line for line in reversed(lines) if line.strip()), "it said nothing")


def groups_of(judged: Sequence[Judged]) -> dict[str, dict[str, tuple[str, list[str]]]]:
    """By command, what went wrong: a cause without its figures, with one reason in full and names.

    Causes that meet most scripts come first.
    """
    found: dict[str, dict[str, tuple[str, list[str]]]] = {}
    for script in judged:
        for command, verdict in script.verdicts.items():
            if verdict.is_right:
                continue
            key = f"{verdict.outcome}: {_without_figures(verdict.reason)}"
            _, names = found.setdefault(command, {}).setdefault(key, (verdict.reason, []))
            names.append(script.name)
    return {
        command: dict(sorted(causes.items(), key=lambda item: (-len(item[1][1]), item[0])))
        for command, causes in found.items()
    }


def step_ms(record: Record | None) -> float | None:
    """Median processor time from one step's end to the next; None for fewer than two steps.

    Processor time, because other work on the machine is in the wall's. The first half of short runs
    is left out with the steps that legroom measures.
    """
    if record is None:
        return None
    times_s = [step["processor_s"] for step in record["steps"] if "processor_s" in step]
    if not times_s:
        return None
    settled_s = times_s[min(_MEASURED_STEPS, len(times_s) // 2) :]
    return 1e3 * float(median(settled_s))


_MEASURED_STEPS = 5


def _last_run(records: Mapping[str, Record]) -> Record | None:
    """The run at the named budget where the first was refused, else the first."""
    return records.get(RUN_AT) or records.get(RUN)


def _judge_plain(plain: Record | None, *, met_border: bool) -> Verdict:
    assert plain is not None, "the table of judges is ours: plain is looked at where it ran"
    if (ended := _did_not_end(plain)) is not None:
        return ended
    if plain["exit"] != 0:
        return Verdict(FAILED, cause_of(plain["said"]))
    if not plain["steps"] and not met_border:
        return Verdict(WRONG, "it trains nothing")
    return Verdict(RIGHT)


def _judge_profile(profile: Record) -> Verdict:
    if (unwell := _did_not_answer(profile)) is not None:
        return unwell
    if not profile["answer"].get("peak_bytes"):
        return Verdict(WRONG, "its answer has no peak")
    return Verdict(RIGHT)


def _judge_plan(plan: Record, records: Mapping[str, Record], entry: Entry) -> Verdict:
    effects = effects_of(plan, records, entry)
    if (unwell := _did_not_answer(plan)) is not None:
        return Verdict(unwell.outcome, "; ".join((unwell.reason, *effects)))
    if effects:
        return Verdict(WRONG, "; ".join(effects))
    real = _peak_by_profile(records)
    planned = plan["answer"].get("plain_peak_bytes")
    if not planned:
        return Verdict(WRONG, "its answer has no plain peak")
    if real and abs(planned - real) > PEAK_TOLERANCE * real:
        return Verdict(
            WRONG,
            f"a plain peak of {planned} bytes is {_off(planned, real)} off profile's {real}",
        )
    return Verdict(RIGHT)


def effects_of(plan: Record, records: Mapping[str, Record], entry: Entry) -> list[str]:
    """What planning did to files, in sentences; nothing where the border is not known."""
    border = records.get(BORDER)
    if border is None or not border["met_border"]:
        return []
    unsteady = _unsteady(records)
    planned, plain = _relevant(plan["files"], entry), _relevant(border["files"], entry)
    steady_names = {_without_figures(path) for path in plain}
    made = [
        path for path in planned if path not in plain and _without_figures(path) not in steady_names
    ]
    changed = [
        path
        for path, digest in planned.items()
        if path in plain and plain[path] != digest and path not in unsteady
    ]
    gone = [
        path
        for path in plain
        if path not in planned
        and _without_figures(path) not in {_without_figures(other) for other in planned}
    ]
    return [
        f"planning {did} {_few(paths)}"
        for did, paths in (("wrote", made), ("changed", changed), ("did not leave", gone))
        if paths
    ]


def _judge_verify(verify: Record, *, repeatable: bool) -> Verdict:
    if not repeatable and verify["exit"] == 2:
        return Verdict(RIGHT)
    if (ended := _did_not_end(verify)) is not None:
        return ended
    answer = verify["answer"]
    if answer is not None and answer.get("equal") is False:
        first = (answer.get("different") or [{}])[0]
        return Verdict(
            WRONG if repeatable else RIGHT,
            f"says different: {first.get('kind')} {first.get('name')} in step {first.get('step')}",
        )
    if (unwell := _did_not_answer(verify)) is not None:
        return unwell
    return Verdict(RIGHT) if answer.get("equal") else Verdict(WRONG, "does not say whether equal")


def _judge_run(
    run: Record, records: Mapping[str, Record], entry: Entry, *, repeatable: bool
) -> Verdict:
    plain = records.get(PLAIN)
    if (ended := _did_not_end(run)) is not None:
        return ended
    if run["exit"] != (plain["exit"] if plain else 0):
        return _failed(run)
    wrong = None
    if plain is not None and not repeatable:
        missing = len(plain["steps"]) - len(run["steps"])
        wrong = f"{missing} steps are missing" if missing else None
    elif plain is not None:
        wrong = _differs(plain, run) or _differs_beside(plain, run, records, entry)
    return Verdict(WRONG, wrong) if wrong else Verdict(RIGHT)


def _failed(record: Record) -> Verdict:
    """Refused if legroom says so in a sentence, and failed if there is a traceback."""
    spoke = "legroom: " in record["said"] and "Traceback" not in record["said"]
    return Verdict(REFUSED if spoke else FAILED, cause_of(record["said"]))


def _differs_beside(
    plain: Record, run: Record, records: Mapping[str, Record], entry: Entry
) -> str | None:
    """What differs of two trainings with the same parameters, as a sentence."""
    if different := _different_files(plain, run, records, entry):
        return f"files differ from plain's: {_few(different)}"
    if not plain["steps"] and _steady_print(records) and plain["printed"] != run["printed"]:
        return "prints something else, and has no optimizer to look into"
    return None


def _steady_print(records: Mapping[str, Record]) -> bool:
    return AGAIN in records and records[PLAIN]["printed"] == records[AGAIN]["printed"]


def _did_not_end(record: Record) -> Verdict | None:
    if record["exit"] is None:
        return Verdict(ENDLESS, f"ended after {record['seconds']:.0f} s")
    return None


def _did_not_answer(record: Record) -> Verdict | None:
    if (ended := _did_not_end(record)) is not None:
        return ended
    if record["exit"] != 0:
        return _failed(record)
    if record["answer"] is None:
        return Verdict(WRONG, "it ended well and wrote no answer")
    return None


def _differs(plain: Record, other: Record) -> str | None:
    """The first difference between two trainings, as a sentence; None if there is none."""
    for number, (ours, theirs) in enumerate(zip(plain["steps"], other["steps"], strict=False), 1):
        if ours["parameters"] != theirs["parameters"]:
            return f"parameters differ after step {number}"
        drawn = sorted(
            name for name in ours["random"] if ours["random"][name] != theirs["random"].get(name)
        )
        if drawn:
            return f"random states of {' and '.join(drawn)} differ after step {number}"
    if len(plain["steps"]) != len(other["steps"]):
        return f"{len(other['steps'])} steps instead of {len(plain['steps'])}"
    return None


def _equal_steps(plain: Record | None, run: Record | None) -> tuple[int, int] | None:
    if plain is None or run is None or not run["steps"]:
        return None
    pairs = list(zip(plain["steps"], run["steps"], strict=False))
    equal = sum(ours["parameters"] == theirs["parameters"] for ours, theirs in pairs)
    return equal, len(plain["steps"])


def _different_files(
    plain: Record, run: Record, records: Mapping[str, Record], entry: Entry
) -> list[str]:
    unsteady = _unsteady(records)
    ours, theirs = _relevant(plain["files"], entry), _relevant(run["files"], entry)
    return [
        path
        for path in sorted(ours.keys() | theirs.keys())
        if ours.get(path) != theirs.get(path)
        and path not in unsteady
        # Names with a time or a process in them are met again under another.
        and _without_figures(path) not in {_without_figures(other) for other in unsteady}
    ]


def _unsteady(records: Mapping[str, Record]) -> set[str]:
    """Files that two plain runs leave differently."""
    plain, again = records.get(PLAIN), records.get(AGAIN)
    if plain is None or again is None:
        return set()
    ours, theirs = plain["files"], again["files"]
    return {path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path)}


def _relevant(files: Mapping[str, str], entry: Entry) -> dict[str, str]:
    if not entry.files:
        return dict(files)
    return {
        path: digest
        for path, digest in files.items()
        if any(fnmatch.fnmatch(path, f"*{pattern}") for pattern in entry.files)
    }


def _peak_by_profile(records: Mapping[str, Record]) -> int | None:
    answer = (records.get(PROFILE) or {}).get("answer") or {}
    return answer.get("peak_bytes")


def _off(value: float, real: float) -> str:
    return f"{100 * (value - real) / real:+.1f} %"


def _few(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(sorted(paths)[:3]) + more


def _without_figures(text: str) -> str:
    return re.sub(r"\d[\d.,]*", "#", text)
