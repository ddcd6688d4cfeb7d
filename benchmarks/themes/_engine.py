"""Theme `engine`: is fitted training the same, within the budget, and faster than others?

In goes what `benchmarks.engine` measured, by case and part, and the parts that are measured once;
out come its tables. Whatever could not be measured is a row with its error.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks import engine
from benchmarks.themes._tables import mib, percent, table
from benchmarks.themes._theme import Theme

_RAN, _BELOW = "ran", "below floor"
_EXACT_HEAD = (
    *("case", "level", "different", "budget MiB", "predicted", "measured", "off", "replans"),
    *("planning s", "to 2nd step s"),
)


def write_markdown(result: dict[str, Any]) -> str:
    """The tables of one result."""
    about, rows, singles = result["about"], result["cases"], result.get("singles", {})
    lines = [
        "# Is fitted training the same, within the budget, and faster than what others offer?",
        "",
        f"{about['date']} · commit {about['commit']} · torch {about['torch']} · Python "
        f"{about['python']} · {about['machine']} · `{about['command']}`. Cases in size `small`, "
        "exactness `bitwise`, executor `eager`.",
        "",
        *_exact_section("The twelve cases", {n: row["exact"] for n, row in rows.items()}),
        *_exact_section("Other architectures", singles.get("architectures", {})),
        *_compiled_section({n: row["compiled"] for n, row in rows.items() if "compiled" in row}),
        *_speed_section({name: row["speed"] for name, row in rows.items()}),
        *_stash_section({name: row["stash"] for name, row in rows.items() if "stash" in row}),
        *_lossy_section({name: row["lossy"] for name, row in rows.items() if "lossy" in row}),
        *_torch_section(singles.get("torch_budget", {})),
        *_limited_section(singles.get("limited", {})),
    ]
    return "\n".join(lines)


# -- the same training -------------------------------------------------------------------------


def _exact_section(title: str, seen: dict[str, Any]) -> Iterable[str]:
    body, ran = [], []
    if isinstance(seen.get("error"), str):
        seen = {"all": seen}
    for name, answer in seen.items():
        if "error" in answer:
            body.append([name, "", answer["error"]])
            continue
        for row in answer["rows"]:
            body.append([name, row["level"], *_exact_cells(row)])
            if row["status"] == _RAN:
                ran.append(row)
    if not body:
        return
    offs = [abs(_off(row)) for row in ran]
    summary = (
        "nothing ran"
        if not ran
        else (
            f"{len(ran)} rows ran; {sum(row['num_different'] == 0 for row in ran)} of them equal "
            f"in every bit; {sum(_is_over(row) for row in ran)} over budget; prediction off by "
            f"median {percent(statistics.median(offs))}, worst {percent(max(offs))}"
        )
    )
    yield from (
        f"## {title}",
        "",
        f"Three steps plain and fitted from the same state: loss, every gradient, parameter, "
        f"buffer, optimizer state and the random state, bit for bit. {summary}.",
        "",
        *table(list(_EXACT_HEAD), body),
        "",
    )


def _exact_cells(row: dict[str, Any]) -> list[str]:
    if row["status"] == _BELOW:
        return [f"below floor ({mib(row['floor_bytes'])} MiB)"]
    if row["status"] != _RAN:
        return [row["error"]]
    first = f" ({row['first_different'][0]})" if row["first_different"] else ""
    return [
        f"{row['num_different']} of {row['num_compared']}{first}",
        mib(row["budget_bytes"]),
        mib(row["predicted_peak_bytes"]),
        mib(row["measured_peak_bytes"] or 0) + " **over**" * _is_over(row),
        percent(_off(row)),
        str(row["replans"]),
        f"{row['planning_s']:.0f}",
        f"{row['to_second_step_s']:.0f}" if "to_second_step_s" in row else "",
    ]


def _off(row: dict[str, Any]) -> float:
    measured: float = row["measured_peak_bytes"] or 0
    return measured / row["predicted_peak_bytes"] - 1


def _is_over(row: dict[str, Any]) -> bool:
    return (row["measured_peak_bytes"] or 0) > row["budget_bytes"]


def _compiled_section(seen: dict[str, Any]) -> Iterable[str]:
    body, offs = [], []
    for name, answer in seen.items():
        for row in answer.get("rows", ()):
            if row["status"] != _RAN:
                body.append([name, row["level"], *_exact_cells(row)])
                continue
            offs.append(abs(_off(row)))
            body.append(
                [name, row["level"], f"{row['loss_off']:.1e}", *_exact_cells(row)[1:]],
            )
        if "error" in answer:
            body.append([name, "", answer["error"]])
    if not body:
        return
    summary = (
        f" Prediction off by median {percent(statistics.median(offs))}, worst {percent(max(offs))}."
        if offs
        else ""
    )
    yield from (
        "## The twelve cases, compiled",
        "",
        "Executor `inductor`, exactness `rounding`; the largest relative difference of the loss "
        f"over three steps.{summary}",
        "",
        *table(["case", "level", "loss off", *_EXACT_HEAD[3:]], body),
        "",
    )


# -- time --------------------------------------------------------------------------------------


def _speed_section(seen: dict[str, Any]) -> Iterable[str]:
    body = []
    for name, answer in seen.items():
        body.append([name, *(_speed_cells(answer) if "error" not in answer else [answer["error"]])])
    head = [
        *("case", "plain ms", "checkpointed / plain", "fitted / plain", "fitted / checkpointed"),
        *("its peak / checkpointed's", "free / plain", "whole / plain"),
        *("stash plain MiB", "stash free", "ratio"),
    ]
    yield from (
        "## Time of a step",
        "",
        f"{engine.ROUNDS} rounds, taking turns, one thread, processor time; ratios are medians of "
        "the ratios within a round, with half the range between their quartiles. *Checkpointed*: "
        "every block under `torch.utils.checkpoint`, by hand. *Fitted*: legroom at that peak, as "
        "measured, or at its floor. *Free*: the lowest budget with at most 2 % of predicted added "
        "time. *Whole*: budget 100 %.",
        "",
        *table(head, body),
        "",
    )


def _speed_cells(answer: dict[str, Any]) -> list[str]:
    times = answer["times_ms"]
    peaks, stash = answer["peaks"], answer["stash"]
    return [
        f"{statistics.median(times['plain']):.0f}",
        ratio_of(times, "checkpoint", "plain"),
        ratio_of(times, "fitted", "plain"),
        ratio_of(times, "fitted", "checkpoint"),
        f"{answer['reports']['fitted']['measured_peak_bytes'] / peaks['checkpoint']:.3f}"
        if "checkpoint" in peaks
        else "–",
        ratio_of(times, "free", "plain"),
        ratio_of(times, "whole", "plain"),
        mib(stash["plain"]),
        mib(stash["free"]),
        f"{stash['plain'] / max(1, stash['free']):.2f}",
    ]


def _stash_section(seen: dict[str, Any]) -> Iterable[str]:
    if not seen:
        return
    yield from (
        "## How much less can be kept for backward",
        "",
        "Stash as `legroom profile` measures it, with `stash=` so many times less than plain's and "
        "the plain step's peak as the budget; times as above.",
        "",
        *_less_table(seen),
        "",
    )


def _lossy_section(seen: dict[str, Any]) -> Iterable[str]:
    if not seen:
        return
    yield from (
        "## How much less where fewer bits are allowed",
        "",
        "*Planned*: `stash=` 25 times less than plain's (ResNet-50: 12). The others are recipes "
        "with room around them, with Inductor's kernels where nothing else is said. *Blocks*: "
        "what enters each block is kept, whole. *2 bits*: everything that backward reads is kept "
        "with two bits for each number, rounded at random (ActNN).",
        "",
        *_less_table(seen),
        "",
    )


def _less_table(seen: dict[str, Any]) -> Iterable[str]:
    body = []
    for name, answer in seen.items():
        if "error" in answer:
            body.append([name, answer["error"]])
            continue
        stash = answer["stash"]
        for key, report in answer["reports"].items():
            error = report.get("gradient_error")
            body.append(
                [
                    name,
                    key,
                    report["exactness"],
                    mib(stash["plain"]),
                    mib(stash[key]),
                    f"{stash['plain'] / max(1, stash[key]):.2f}",
                    ratio_of(answer["times_ms"], key, "plain"),
                    mib(report["plain_peak_bytes"] - report["measured_peak_bytes"]),
                    percent(error) if error is not None else "",
                ]
            )
        body += [[name, key, why] for key, why in answer.get("failed", {}).items()]
    head = [
        *("case", "asked", "exactness", "stash plain MiB", "stash", "times less", "time / plain"),
        *("peak lower", "gradients off"),
    ]
    return table(head, body)


def ratio_of(times: dict[str, list[float]], one: str, other: str) -> str:
    """The median over rounds of one contestant's time by another's, and its spread."""
    if one not in times or other not in times:
        return "–"
    ratios = [mine / theirs for mine, theirs in zip(times[one], times[other], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f} ± {(high - low) / 2:.3f}"


def _torch_section(seen: dict[str, Any]) -> Iterable[str]:
    if not seen:
        return
    yield from ("## Against `activation_memory_budget`", "")
    if "error" in seen:
        yield from (seen["error"], "")
        return
    body = []
    for row in seen["rows"]:
        cells = [row["subject"], f"{row['setting']:g}"]
        if "error" in row:
            body.append([*cells, row["error"]])
            continue
        times = row["times_ms"]
        body.append(
            [
                *cells,
                mib(row["torch_peak_bytes"]),
                mib(row["measured_peak_bytes"]),
                *(
                    f"{statistics.median(times[each]):.0f}"
                    for each in ("plain", "torch", "legroom")
                ),
                ratio_of(times, "legroom", "torch"),
            ]
        )
    head = [
        *("model", "setting", "torch's peak MiB", "legroom's", "plain ms", "torch ms"),
        *("legroom ms", "legroom / torch"),
    ]
    yield from (
        "Both run the same eager kernels; legroom's budget is the peak that torch's setting "
        "reaches, as measured.",
        "",
        *table(head, body),
        "",
    )


def _limited_section(seen: dict[str, Any]) -> Iterable[str]:
    if not seen:
        return
    yield from ("## In a process limited to half of the plain step's peak", "")
    if "error" in seen:
        yield from (seen["error"], "")
        return
    fitted, limited = seen["fitted"], seen["limited"]
    report = fitted["report"] or {}
    body = [
        ["plain, no limit", mib(seen["plain_peak_bytes"]), ", ".join(seen["plain"]["losses"])],
        ["plain, limited", "", limited.get("failed") or limited.get("error") or "ran"],
        [
            "`legroom run --limit`",
            mib(report.get("measured_peak_bytes") or 0),
            ", ".join(fitted["losses"]) if not fitted["exit_code"] else fitted["said"][-200:],
        ],
    ]
    yield from (
        f"`{seen['case']}` in size `{seen['size']}`; the process may grow by "
        f"{mib(seen['allowed_bytes'])} MiB (`RLIMIT_DATA`) from before the model is built, legroom "
        "and everything that it compiles included.",
        "",
        *table(["run", "peak MiB", "losses"], body),
        "",
    )


ENGINE = Theme(
    name="engine",
    module="benchmarks.engine",
    case_parts=tuple(engine.CASE_PARTS),
    single_parts=tuple(engine.SINGLE_PARTS),
    write_markdown=write_markdown,
)
