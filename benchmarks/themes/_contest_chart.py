"""The contest as pictures for README: peak against time, one line per contestant.

In goes the result; out comes an SVG text for each case that is shown, the same for the same result.
What did not train has no point; the tables say why. See Note [Chart].
"""

# Note [Chart]
# 1. Hue is exactness, shape is the contestant. legroom's lines are thick and filled, a peer's thin
#    and hollow; a peer that was run at one setting is one point. A shape is a peer's in all charts.
# 2. A line goes through all points of a contestant, in order of peak: none is left out because
#    another is better. Plain is the same point in each heat, and is drawn once.
# 3. Time has a logarithmic axis: half and twice are equally far from plain.
# 4. The background is white whatever the page's is. Text is text, and no date is in the file.

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks import peers
from benchmarks.contest._heats import OURS, PLAIN
from benchmarks.themes._contest_rows import Row, line_of, line_rows, median_ratio

CASES = ("gpt2", "resnet50")
_GROUPS = {
    "bitwise": ("same bits", "#1558b0", "o"),
    "rounding": ("other rounding", "#c04a00", "s"),
    "lossy": ("lossy", "#2e7d32", "^"),
}
"""By exactness: how the legend says it, its hue, and legroom's shape."""
_MARKERS = "os^vDPX<>phdx+1"
_HEADING = "heading"
_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)))
_TICKS = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 7, 10, 20, 50)
_LEAST_DISTANCE = 0.045
"""Ticks that are closer, as a share of the axis, would run into each other."""
_INK, _PALE = "#24292f", "#d8dee4"
_STYLE = {
    "svg.hashsalt": "legroom",
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": "#8c959f",
    "xtick.color": _INK,
    "ytick.color": _INK,
}


@dataclass(frozen=True)
class Line:
    """What is joined: a contestant, legroom on certain terms, or plain.

    Attributes:
        points: Peak in MiB and time by plain's, in order of peak.
        marker: Shape of its points; differs within an exactness.
    """

    name: str
    exactness: str
    points: tuple[tuple[float, float], ...]
    marker: str

    @property
    def is_ours(self) -> bool:
        """Whether it is legroom's."""
        return self.name.split(" ")[0] == OURS


def write_charts(result: dict[str, Any]) -> dict[str, str]:
    """An SVG for each case that is shown and has points, by the case's name.

    None of a quick run: a few points make no line, and those of all heats are to stay.
    """
    charts = {}
    for name in CASES if not result["about"].get("quick") else ():
        answer = next(iter(result["cases"].get(name, {}).values()), {})
        lines = lines_of(answer)
        if lines:
            charts[name] = draw(name, lines, result["about"])
    return charts


def lines_of(answer: dict[str, Any]) -> list[Line]:
    """What is drawn of a case: legroom first, then the peers in the order of their registry."""
    found: dict[str, Row] = {}
    points: dict[str, set[tuple[float, float]]] = {}
    for row, plain in line_rows(answer):
        ratio = median_ratio(row, plain) if row["status"] == "ready" else math.nan
        if not math.isnan(ratio):
            found.setdefault(line_of(row), row)
            points.setdefault(line_of(row), set()).add((row["peak_bytes"] / 2**20, ratio))
    every = [
        Line(name, _exactness(row), tuple(sorted(points[name])), _marker(row))
        for name, row in found.items()
    ]
    order = [OURS, *(name for name in peers.names() if name != OURS)]
    # Terms of legroom by name, so that their dashes are the same in all charts.
    return sorted(every, key=lambda line: (order.index(line.name.split(" ")[0]), line.name))


def _exactness(row: Row) -> str:
    is_ours = row["peer"] == OURS
    return str(row["setting"]["exactness"] if is_ours else peers.get(row["peer"]).exactness)


def _marker(row: Row) -> str:
    if row["peer"] == PLAIN:
        return "*"
    if row["peer"] == OURS:
        return _GROUPS[_exactness(row)][2]
    others = [peers.get(name) for name in peers.names() if name not in (PLAIN, OURS)]
    alike = [peer.name for peer in others if peer.exactness == _exactness(row)]
    return _MARKERS[alike.index(row["peer"]) % len(_MARKERS)]


# -- drawing -------------------------------------------------------------------------------------


def draw(name: str, lines: list[Line], about: dict[str, Any]) -> str:
    """The picture of one case; about 50 kilobytes."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        height = max(4.8, 0.5 + 0.178 * (len(lines) + len(_GROUPS)))  # of the legend, in inches
        figure = Figure(figsize=(9, height), facecolor="white")
        axes = figure.add_axes((0.075, 0.105, 0.615, 0.765))
        handles = dict(_drawn(axes, lines))
        _set_axes(axes, lines)
        figure.text(0.075, 0.945, f"{name}: what a lower peak costs", size=13, weight="bold")
        said = f"further left and lower is better · {about['date']}, torch {about['torch']}"
        figure.text(0.075, 0.9, said, color="#57606a")
        _set_legend(figure, lines, handles)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return written.getvalue()


def _drawn(axes: Any, lines: list[Line]) -> Iterator[tuple[str, Any]]:
    """Peers below, legroom above them; with what the legend shows."""
    dashes = {exactness: itertools.cycle(_DASHES) for exactness in _GROUPS}
    for line in lines:
        xs, ys = zip(*line.points, strict=True)
        look = _look(line)
        if line.is_ours:
            look["linestyle"] = next(dashes[line.exactness])
        (drawn,) = axes.plot(xs, ys, marker=line.marker, **look)
        yield line.name, drawn


def _look(line: Line) -> dict[str, Any]:
    """See Note [Chart], rule 1."""
    hue = _GROUPS[line.exactness][1]
    if line.name == PLAIN:
        return {"color": _INK, "markersize": 13, "linestyle": "", "zorder": 5}
    if line.is_ours:
        edge = {"markeredgecolor": "white", "markeredgewidth": 0.8}
        return {"color": hue, "markersize": 6, "linewidth": 2.6, "zorder": 4, **edge}
    hollow = {"markerfacecolor": "white", "markeredgewidth": 1.1, "markersize": 6}
    dash = "-" if len(line.points) > 1 else ""
    return {"color": hue, "linestyle": dash, "linewidth": 0.9, "alpha": 0.85, "zorder": 3, **hollow}


def _set_axes(axes: Any, lines: list[Line]) -> None:
    times = [time for line in lines for _, time in line.points]
    low, high = min(*times, 0.95) / 1.03, max(*times, 1.05) * 1.03
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.set_yticks(list(_ticks(low, high)))
    axes.set_yticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:g}")
    axes.set_xlabel("peak of a step, MiB")
    axes.set_ylabel("step time / plain")
    axes.grid(color=_PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.axhline(1, color="#8c959f", linewidth=1, zorder=1)
    axes.margins(x=0.04)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _ticks(low: float, high: float) -> Iterator[float]:
    """From 1 upwards and downwards, those that are far enough from the one before."""
    least = _LEAST_DISTANCE * math.log(high / low)
    for values in (
        [value for value in _TICKS if value >= 1],
        [value for value in reversed(_TICKS) if value < 1],
    ):
        before = None if values[0] == 1 else 1.0
        for value in values:
            if before is None or abs(math.log(value / before)) >= least:
                before = value
                if low <= value <= high:
                    yield value


def _set_legend(figure: Any, lines: list[Line], handles: dict[str, Any]) -> None:
    """Beside the axes, where no line can be behind it; by exactness."""
    entries = list(_entries(lines, handles))
    legend = figure.legend(
        [handle for handle, _ in entries],
        [text for _, text in entries],
        loc="upper left",
        bbox_to_anchor=(0.7, 0.965),
        frameon=False,
        fontsize=8.2,
        handlelength=2.8,
        labelspacing=0.42,
    )
    for text, (handle, said) in zip(legend.get_texts(), entries, strict=True):
        if handle.get_gid() == _HEADING:
            text.set(weight="bold", color=handle.get_color(), style="italic")
        elif said.split(" ")[0] == OURS:
            text.set_weight("bold")


def _entries(lines: list[Line], handles: dict[str, Any]) -> Iterable[tuple[Any, str]]:
    from matplotlib.lines import Line2D

    yield from ((handles[line.name], PLAIN) for line in lines if line.name == PLAIN)
    for exactness, (said, hue, _) in _GROUPS.items():
        group = [line for line in lines if line.exactness == exactness and line.name != PLAIN]
        if group:
            yield Line2D([], [], linestyle="none", color=hue, gid=_HEADING), said
            yield from ((handles[line.name], line.name) for line in group)
