"""Theme `shrink`: what does holding less cost in accuracy, and what does a loss take?

In goes what `benchmarks.shrink` measured; out come its tables.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks import shrink
from benchmarks.themes._tables import mib, percent, table
from benchmarks.themes._theme import Theme


def write_markdown(result: dict[str, Any]) -> str:
    """The tables of one result."""
    about, singles = result["about"], result.get("singles", {})
    lines = [
        "# What does holding less cost in accuracy, and what does a loss take?",
        "",
        f"{about['date']} · commit {about['commit']} · torch {about['torch']} · Python "
        f"{about['python']} · {about['machine']} · `{about['command']}`",
        "",
        *_loss_section(singles.get("loss", {})),
        *_blocks_section(singles.get("blocks", {})),
        *_convergence_section({name: singles.get(name, {}) for name in shrink.MODELS}),
        *_recipe_section({name: singles.get(f"preset-{name}", {}) for name in shrink.RECIPES}),
    ]
    return "\n".join(lines)


def _loss_section(seen: dict[str, Any]) -> Iterable[str]:
    yield from ("## The last layer and the loss of GPT-2", "")
    if "rows" not in seen:
        yield from (seen.get("error", "not measured"), "")
        return
    logits = seen["logits_bytes"]
    body = [
        [
            name,
            mib(row["loss_part_bytes"]),
            f"{row['loss_part_bytes'] / logits:.2f}",
            mib(row["gradient_bytes"]),
            ", ".join(f"{error:.1e}" for error in row["gradient_errors"]),
        ]
        for name, row in seen["rows"].items()
    ]
    yield from (
        f"Batch {shrink.BATCH} of {shrink.LENGTH} tokens, vocabulary {shrink.VOCABULARY}, width "
        f"{shrink.WIDTH}; the logits take {mib(logits)} MiB. Fitted: `legroom.fit` on a function "
        "that returns the loss, at its floor, exactness `rounding`. The loss part is the peak "
        "beyond weights, features and the gradients of both.",
        "",
        *table(
            ["", "loss part MiB", "of the logits", "gradients MiB", "off from float64 (features, "
             "weight)"],
            body,
        ),
        "",
    )  # fmt: skip


def _blocks_section(seen: dict[str, Any]) -> Iterable[str]:
    yield from ("## Linear layers in chunks", "")
    if "rows" not in seen:
        yield from (seen.get("error", "not measured"), "")
        return
    body = []
    for name, row in seen["rows"].items():
        plain_ms = statistics.median(row["times_ms"]["plain"])
        for contestant, found in row["contestants"].items():
            body.append(
                [
                    name if contestant == "plain" else "",
                    contestant,
                    mib(found["grown_bytes"]),
                    mib(found["grown_bytes"] - row["returned_bytes"]),
                    f"{statistics.median(row['times_ms'][contestant]) / plain_ms:.2f}",
                    f"{found['worst_gradient_error']:.1e}",
                ]
            )
    floors = [
        [
            name,
            mib(row["plain_peak_bytes"]),
            key,
            mib(row[key]["floor_peak_bytes"]),
            percent(row[key]["added_ms"] / row["step_ms"]),
        ]
        for name, row in seen["floors"].items()
        for key in ("without", "with")
    ]
    yield from (
        "Forward and backward of one block, as `torch.nn` has it and as "
        "`legroom.layers.ChunkedMLP`. What comes out and all gradients are part of the peak; "
        "temporary is the rest.",
        "",
        *table(
            ["block", "", "peak MiB", "temporary MiB", "time", "gradients off from float64"], body
        ),
        "",
        "The lowest peak that plans reach at exactness `rounding`, without and with `chunked-mlp`, "
        "and the time that they add at it: 4 layers of width 128, batch 16 of 160 tokens.",
        "",
        *table(["model", "plain MiB", "chunked-mlp", "floor MiB", "added"], floors),
        "",
    )


def _convergence_section(seen: dict[str, Any]) -> Iterable[str]:
    yield from ("## Training with fewer bits", "")
    body = []
    for model, answer in seen.items():
        if "rows" not in answer:
            body.append([model, answer.get("error", "not measured")])
            continue
        body += _rows_of(model, answer["rows"])
    yield from (
        f"{shrink.NUM_STEPS} steps of Adam on generated data, seeds {shrink.SEEDS}; every tensor "
        "is encoded that the way applies to (`ways=[...]`, budget `lowest`). The final loss is the "
        f"mean of the last {shrink.LAST_STEPS} steps.",
        "",
        *table(
            ["model", "held as", "tensors", "gradients off", "final losses", "mean",
             "within plain's spread"],
            body,
        ),
        "",
    )  # fmt: skip


def _rows_of(model: str, rows: list[dict[str, Any]]) -> Iterable[list[str]]:
    plain = next(row["final_losses"] for row in rows if row["encoding"] == "plain")
    for row in rows:
        finals = row["final_losses"]
        mean = statistics.mean(finals)
        error, encoded = row.get("gradient_error"), row.get("encoded", {})
        is_within = "yes" if min(plain) <= mean <= max(plain) else "no"
        yield [
            model,
            row["encoding"],
            str(encoded.get("tensors", "")),
            percent(error) if error is not None else "",
            ", ".join(f"{each:.4f}" for each in finals),
            f"{mean:.4f}",
            is_within,
        ]


def _recipe_section(seen: dict[str, Any]) -> Iterable[str]:
    yield from ("## Recipes of the literature, and the planner at the same peak", "")
    body = []
    for name, answer in seen.items():
        if "times_ms" not in answer:
            body.append([name, answer.get("error", "not measured")])
            continue
        plain = statistics.median(answer["times_ms"]["plain"])
        for contestant, report in answer["reports"].items():
            ratios = sorted(each / plain for each in answer["times_ms"][contestant])
            error = report["gradient_error"]
            body.append(
                [
                    name if contestant == "recipe" else "",
                    answer["case"] if contestant == "recipe" else "",
                    contestant,
                    mib(answer["plain_peak_bytes"]),
                    mib(report["measured_peak_bytes"]),
                    f"{statistics.median(ratios):.2f}",
                    f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
                    percent(error) if error is not None else "",
                ]
            )
    yield from (
        "Recipe: `legroom.fit(preset=NAME, budget=\"lowest\")`, the leanest of its forms on our "
        "graph. Planner: the same exactness, with the peak that was measured of the recipe as the "
        "budget. All three share a process, and peaks include what the others hold. Step times are "
        "relative to the median of plain, one thread, taking turns.",
        "",
        *table(
            ["recipe", "case", "", "plain peak MiB", "measured peak MiB", "time", "spread",
             "gradients off"],
            body,
        ),
        "",
    )  # fmt: skip


SHRINK = Theme(
    name="shrink",
    module="benchmarks.shrink",
    case_parts=(),
    single_parts=tuple(shrink.SINGLE_PARTS),
    write_markdown=write_markdown,
)
