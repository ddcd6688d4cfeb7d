"""Theme `reach`: how large a batch, how deep a model, how long a sequence fits.

In goes what `benchmarks.reach` measured, by case and what grows; out come its tables, next to the
factors that the literature states. A question that was not run is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks import reach, tries
from benchmarks.themes._tables import mib, table
from benchmarks.themes._theme import Theme

PUBLISHED = {
    "batch": (
        ("Tempo (GPT-2, BERT)", "exact", 2.0, "batch x2"),
        ("Checkmate (CNNs)", "exact", 5.1, "inputs x5.1"),
        ("ActNN (CNNs)", "lossy", 6.6, "batch x6.6 to x14"),
    ),
    "depth": (
        ("TensorFlowMem (ResNet, batch 16)", "exact, swapping", 1916 / 504, "504 to 1916 layers"),
        ("TensorFlowMem (ResNet, batch 32)", "exact, swapping", 1001 / 235, "235 to 1001 layers"),
    ),
    "length": (("TensorFlowMem (RNN)", "exact, swapping", 2.0, "length 400 to 800 and more"),),
}
"""By what grows: who, how, the factor (the lowest, where it is a range), and in their words."""


def write_markdown(result: dict[str, Any]) -> str:
    """The tables of one result."""
    about, rows = result["about"], result["cases"]
    lines = [
        "# How large a batch, how deep a model, how long a sequence fits into a fixed budget?",
        "",
        f"{about['date']} · commit {about['commit']} · torch {about['torch']} · Python "
        f"{about['python']} · {about['machine']} · `{about['command']}`. One thread, executor "
        "`eager`.",
        "",
        "The budget is the plain step's measured peak in size `small` (the allocator's bytes), and "
        "only the named field of the size grows. Values double, then a line through the two "
        "nearest floors says what is planned next, until one fits and one that is at most "
        f"{100 * reach.TOLERANCE:g} % larger (or larger by one) does not: at most "
        f"{reach.MOST_TRIES} values of each contestant. *Largest*: planned to fit, and then "
        f"trained, with {tries.NUM_STEPS} steps before the measured one; its peak is within the "
        "budget, or the next lower value is trained. A value that took more than "
        f"{reach.PLAN_LIMIT_S:g} s to plan ends the search upwards: *at least*. *Speed*: what "
        "grows (items, layers, positions) per second of processor time, against plain's at its "
        f"own largest; *wall*: the same by the wall's clock. Medians of {tries.TIMED_STEPS} steps. "
        "*Gradients off*: of lossy plans, measured on the first batch, as a share of their norm; "
        "no bound was set.",
        "",
    ]
    missing = []
    for what, asked in reach.QUESTIONS.items():
        answers = {}
        for name in asked:
            parts = {each: rows.get(name, {}).get(f"{what} {each}") for each in reach.CONTESTANTS}
            answers[name] = {each: found for each, found in parts.items() if found is not None}
            left = [each for each, found in parts.items() if found is None]
            if left:
                missing.append(f"{what} of {name} ({', '.join(left)})")
        if any(answers.values()):
            lines += [f"## {what.capitalize()}", "", *_section(what, answers), ""]
    if missing:
        lines += [f"Not run: {'; '.join(missing)}.", ""]
    return "\n".join(lines)


def _section(what: str, answers: dict[str, Any]) -> Iterator[str]:
    head = [
        *("case", "contestant", "budget MiB", "largest", "factor", "planned", "does not fit"),
        *("peak MiB", "speed", "wall", "values planned", "gradients off"),
    ]
    body = [row for name, answer in answers.items() for row in _rows(name, answer)]
    body += [
        [f"*{who}*", how, "", "", f"{factor:.1f}", words]
        for who, how, factor, words in PUBLISHED[what]
    ]
    yield from table(head, body)


def _rows(name: str, answers: dict[str, Any]) -> Iterator[list[str]]:
    """Of plain, which every contestant's answer holds, and of each contestant."""
    ran = [answer for answer in answers.values() if "error" not in answer]
    if ran:
        yield _plain_row(name, ran[0])
    for contestant, answer in answers.items():
        if "error" in answer:
            yield [name, contestant, "", answer["error"]]
        else:
            yield [name, contestant, mib(answer["plain"]["peak_bytes"]), *_found_cells(answer)]


def _plain_row(name: str, answer: dict[str, Any]) -> list[str]:
    budget_bytes, above = answer["plain"]["peak_bytes"], answer["plain_above"]
    over = above.get("peak_bytes", 0) > budget_bytes
    return [
        f"{name}, `{answer['field']}`",
        "plain",
        mib(budget_bytes),
        str(answer["base"]),
        "1.0",
        "",
        f"{above['value']} ({mib(above['peak_bytes'])} MiB)" if over else above.get("error", "?"),
        mib(budget_bytes),
        "1.00",
        "1.00",
    ]


def _found_cells(found: dict[str, Any]) -> list[str]:
    plain, base, value = found["plain"], found["base"], found["value"]
    at_least = "" if found["is_bracketed"] else "at least "
    planned = f"{at_least}{found['planned_value']}"
    above = "" if found["above"] is None else str(found["above"])
    if not found["is_bracketed"] and found["planned"] and "error" in found["planned"][-1]:
        above = f"{above}: {found['planned'][-1]['error']}"
    if value is None:
        said = found["runs"][-1].get("error", "over the budget") if found["runs"] else "not run"
        return ["–", "–", planned, above, said, "", "", str(len(found["planned"]))]
    run = next(each for each in found["runs"] if each["value"] == value)
    speeds = [value / base * plain[key] / run[key] for key in ("processor_ms", "step_ms")]
    return [
        f"{at_least}{value}",
        f"{value / base:.1f}",
        planned,
        above,
        mib(run["peak_bytes"]),
        *(f"{speed:.2f}" for speed in speeds),
        str(len(found["planned"])),
        "same bits" if run.get("gradient_error") is None else f"{run['gradient_error']:.2g}",
    ]


REACH = Theme(
    name="reach",
    module="benchmarks.reach",
    case_parts=tuple(reach.CASE_PARTS),
    write_markdown=write_markdown,
)
