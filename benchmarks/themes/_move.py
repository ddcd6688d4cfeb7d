"""Theme `move`: what holding tensors on the disk saves and costs.

In goes what `benchmarks.move` measured, by case and part, and the parts that are measured once;
out come its tables. Whatever could not be measured is a row with its error.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks import move
from benchmarks.themes._engine import ratio_of
from benchmarks.themes._tables import mib, table
from benchmarks.themes._theme import Theme


def write_markdown(result: dict[str, Any]) -> str:
    """The tables of one result."""
    about, rows, singles = result["about"], result["cases"], result.get("singles", {})
    lines = [
        "# What does holding tensors on the disk save, and what does it cost?",
        "",
        f"{about['date']} · commit {about['commit']} · torch {about['torch']} · Python "
        f"{about['python']} · {about['machine']} · `{about['command']}`. Cases in size `small`, "
        "exactness `bitwise`, executor `eager`. Times by the wall's clock, one thread.",
        "",
        *_floor_section({name: row["floor"] for name, row in rows.items() if "floor" in row}),
        *_resident_section(
            {name: row["resident"] for name, row in rows.items() if "resident" in row}
        ),
        *_less_section({name: row["less"] for name, row in rows.items() if "less" in row}),
        *_soak_section(singles.get("soak", {})),
        *_interruptions_section(singles.get("interruptions", {})),
        *_faults_section(singles.get("faults", {})),
    ]
    return "\n".join(lines)


def _floor_section(seen: dict[str, Any]) -> Iterable[str]:
    body = []
    for name, answer in seen.items():
        if "error" in answer:
            body.append([name, answer["error"]])
            continue
        row, floors = answer["row"], answer["floors"]
        cells = [name, *(mib(answer[each]) for each in ("plain_peak_bytes", "state_bytes"))]
        cells += [mib(floors["without"]), mib(floors["with"])]
        if row["status"] != "ran":
            body.append([*cells, row.get("error", row["status"])])
            continue
        body.append(
            [
                *cells,
                f"{row['num_different']} of {row['num_compared']}",
                mib(row["budget_bytes"]),
                mib(row["measured_peak_bytes"]),
                mib(row["ways"].get("disk", {}).get("bytes", 0)),
            ]
        )
    head = [
        *("case", "plain MiB", "state", "floor without", "floor with", "different", "budget"),
        *("measured", "moved"),
    ]
    yield from (
        "## As little as possible",
        "",
        "The lowest peak that plans reach without and with the disk; the latter carried out for "
        "three steps and compared with plain bit for bit.",
        "",
        *table(head, body),
        "",
    )


def _resident_section(seen: dict[str, Any]) -> Iterable[str]:
    body = []
    for name, answer in seen.items():
        if "error" in answer:
            body.append([name, answer["error"]])
            continue
        grown, counted = answer["growth_bytes"], answer["allocated_bytes"]
        body.append([name, mib(grown), mib(counted), f"{grown / counted:.2f}"])
    yield from (
        "## What the process really holds",
        "",
        "A step at that floor, with memory that is freed going back to the system: by how much the "
        "process grows (`VmHWM`), and by how much what the allocator has handed out.",
        "",
        *table(["case", "process MiB", "allocator", "ratio"], body),
        "",
    )


def _less_section(seen: dict[str, Any]) -> Iterable[str]:
    body = []
    for name, answer in seen.items():
        if "error" in answer:
            body.append([name, answer["error"]])
            continue
        times, speed = answer["times_ms"], answer["speed"]
        for key, moved in answer["moved_bytes"].items():
            alone_ms = moved / speed["bytes_per_ms_put"] + moved / speed["bytes_per_ms_get"]
            plain_ms = statistics.median(times["plain"])
            added_ms = statistics.median(times[key]) - plain_ms
            hidden = 1 - max(0.0, min(added_ms, alone_ms)) / alone_ms if alone_ms else 1.0
            body.append(
                [
                    name,
                    key,
                    mib(answer["stash"]["plain"]),
                    mib(answer["stash"][key]),
                    f"{answer['stash']['plain'] / max(1, answer['stash'][key]):.1f}",
                    ratio_of(times, key, "plain"),
                    f"{1 + answer['predicted_ms'][key] / plain_ms:.3f}",
                    mib(moved),
                    f"{alone_ms:.0f}",
                    f"{max(0.0, alone_ms - plain_ms):.0f}",
                    f"{100 * hidden:.0f} %",
                ]
            )
        body += [[name, key, why] for key, why in answer.get("failed", {}).items()]
    head = [
        *("case", "asked", "stash plain MiB", "stash", "times less", "time / plain", "predicted"),
        *("moved MiB", "transfer alone ms", "cannot be hidden ms", "hidden at least"),
    ]
    yield from (
        "## Far less kept for backward",
        "",
        "*Transfer alone*: what moving the bytes there and back takes by the tier's measured "
        "bandwidth; what of it is longer than the plain step *cannot be hidden*. *Hidden at "
        "least*: the rest of it after all that the step takes longer, running again included.",
        "",
        *table(head, body),
        "",
    )


def _soak_section(seen: dict[str, Any]) -> Iterable[str]:
    if not seen:
        return
    yield from (f"## {move.NUM_STEPS} steps", "")
    if "error" in seen:
        yield from (seen["error"], "")
        return
    body = [
        [
            str(each["step"]),
            mib(each["resident_bytes"]),
            *(str(each[key]) for key in ("descriptors", "threads", "slots")),
            mib(each["file_bytes"]),
        ]
        for each in seen["readings"]
    ]
    head = ["step", "resident MiB", "descriptors", "threads", "slots", "file MiB"]
    yield from ("GPT-2, a tenth of the stash kept.", "", *table(head, body), "")


def _interruptions_section(seen: dict[str, Any]) -> Iterable[str]:
    if not seen:
        return
    yield from ("## Interrupted at random", "")
    if "error" in seen:
        yield from (seen["error"], "")
        return
    counts, left = seen["counts"], seen["left"]
    yield from (
        f"GPT-2, Ctrl-C at {move.NUM_INTERRUPTIONS} random moments of fitted steps: "
        f"{counts['interrupted']} were interrupted, {counts['ended before']} had ended before; "
        f"after {counts['equal after']} of them the next step had the bits that it has otherwise. "
        f"Left at the end: {left['slots']} slots, {left['threads']} threads, "
        f"{left['descriptors']} descriptors.",
        "",
    )


_COUNTED = {
    "injected": "injected",
    "same": "plain's bits",
    "raised": "error",
    "named_tensor": "names the tensor",
    "named_tier": "names the tier",
    "unchanged": "weights unchanged",
    "right_after": "right bits after",
    "slots": "slots left",
    "threads": "threads left",
    "descriptors": "descriptors left",
}


def _faults_section(seen: dict[str, Any]) -> Iterable[str]:
    if not seen:
        return
    yield from ("## Faults in fitted steps", "")
    if "error" in seen:
        yield from (seen["error"], "")
        return
    body, totals, num_right, num_runs = [], dict.fromkeys(_COUNTED, 0), 0, 0
    for name, row in seen["rows"].items():
        ran = [each for each in row["models"].values() if "failed" not in each]
        counts = {key: sum(each[key] for each in ran) for key in _COUNTED}
        totals = {key: totals[key] + count for key, count in counts.items()}
        num_right += sum(each["as_it_should"] for each in ran)
        num_runs += len(row["models"])
        body.append([name, row["ends"], *(str(count) for count in counts.values())])
        body += [
            [name, model, each["failed"]]
            for model, each in row["models"].items()
            if "failed" in each
        ]
    body.append(["all", "", *(str(count) for count in totals.values())])
    models = sorted({model for row in seen["rows"].values() for model in row["models"]})
    yield from (
        f"In {', '.join(models)}, a fifth of the stash kept, each beside a plain twin; disk faults "
        "at the first, the middle and the last write or read of a step. *Must end in*: what the "
        "step with the fault has to come to. *Right bits after*: the step again and the one after "
        "it, loss, gradients and weights. *Left*: at the end, against before. "
        f"{num_right} of {num_runs} runs of a fault in a model were as they must be.",
        "",
        *table(["fault", "must end in", *_COUNTED.values()], body),
        "",
    )


MOVE = Theme(
    name="move",
    module="benchmarks.move",
    case_parts=tuple(move.CASE_PARTS),
    single_parts=tuple(move.SINGLE_PARTS),
    write_markdown=write_markdown,
)
