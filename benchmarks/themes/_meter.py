"""Theme `meter`: is the meter right, and what does it cost?

In goes what `benchmarks.meter` measured, one entry for each case and part; out come its tables.
"""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.meter import PARTS, REPETITIONS, WARMUP_STEPS
from benchmarks.themes._tables import mib, table
from benchmarks.themes._theme import Theme
from legroom.meter import Kind


def write_markdown(result: dict[str, Any]) -> str:
    """The tables of one result."""
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
        *table(["case", *(kind.title for kind in Kind), "**sum**"], _kind_rows(rows)),
        "",
        "## The peak against the allocator's own count and against torch's MemTracker",
        "",
        "*Truth* is the running sum of the allocator's events since before the model was built. "
        "MemTracker is told of models, optimizers and the live input tensors; it runs a dispatch "
        "mode, which keeps autograd from working in place, and it does not see scratch memory "
        "inside operations. The last column leaves our row of workspace out of the comparison.",
        "",
        *table(
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
        *table(
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
        *table(
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


def _kind_rows(rows: dict[str, Any]) -> list[list[str]]:
    body = []
    for name, row in rows.items():
        seen = row["profile"]
        if "error" in seen:
            body.append([name, seen["error"]])
            continue
        kinds = [mib(seen["kinds"][kind.value]) for kind in Kind]
        body.append([name, *kinds, f"**{mib(seen['kinds_sum_bytes'])}**"])
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
            mib(seen["resident_peak_bytes"] or 0),
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


METER = Theme(
    name="meter",
    module="benchmarks.meter",
    case_parts=tuple(PARTS),
    about={"warmup_steps": WARMUP_STEPS, "repetitions": REPETITIONS},
    write_markdown=write_markdown,
)
