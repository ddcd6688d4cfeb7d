"""The list of tiers as a table in the terminal, and as data.

In go the tiers with what was measured of them, or why there is none here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

from rich.console import Console
from rich.markup import escape

from legroom.meter import TierSpeed
from legroom.report._tables import make_table
from legroom.units import format_bytes, format_ms


@final
@dataclass(frozen=True, slots=True)
class TierRow:
    """One tier on this machine.

    Attributes:
        description: Where it is and how it works, as the tier says; empty where it cannot be used.
        reason: Why it cannot be used here; empty where it can.
    """

    name: str
    summary: str
    description: dict[str, str]
    free_bytes: int | None = None
    speed: TierSpeed | None = None
    reason: str = ""


def tiers_data(rows: Sequence[TierRow]) -> dict[str, Any]:
    """Every tier as a dictionary."""
    return {"schema": "legroom.tiers/1", "tiers": [asdict(row) for row in rows]}


def print_tiers(rows: Sequence[TierRow], console: Console) -> None:
    """Print where the tiers are, and how fast each is in both directions."""
    table = make_table(
        "name", "what it is", "where", "how", "free",
        title="Tiers: where bytes live besides the device",
        figures={"free": 9}, wrapping=("what it is", "where", "how"),
    )  # fmt: skip
    for row in rows:
        table.add_row(
            f"[bold]{escape(row.name)}[/bold]",
            escape(row.summary),
            escape(row.reason or row.description.get("where", "")),
            f"[dim]{escape(_how(row))}[/dim]",
            "–" if row.free_bytes is None else format_bytes(row.free_bytes),
        )
    console.print(table)
    measured = [row for row in rows if row.speed is not None]
    if not measured:
        return
    table = make_table(
        "name", "", "out", "latency", "in", "latency ",
        title="\nMeasured here, from memory to the tier and back",
        figures={"out": 10, "latency": 8, "in": 10, "latency ": 8},
    )  # fmt: skip
    for row in measured:
        for cells in _speed_rows(row):
            table.add_row(*cells)
    console.print(table)
    for row in measured:
        assert row.speed is not None, "bug in legroom: not measured"
        more = 100 * (row.speed.compute_slowdown - 1)
        console.print(
            f"[dim]{escape(row.name)}: while it moves, computing takes {more:.0f} % longer[/dim]",
            highlight=False,
        )


def _how(row: TierRow) -> str:
    words = [
        value if name in ("file_system", "access") else f"{value} {name}"
        for name, value in row.description.items()
        if name not in ("where", "device") and value
    ]
    return ", ".join(words)


def _speed_rows(row: TierRow) -> list[tuple[str, ...]]:
    speed = row.speed
    assert speed is not None, "bug in legroom: not measured"
    return [
        (
            f"[bold]{escape(row.name)}[/bold]",
            "alone",
            _rate(speed.bytes_per_ms_put),
            format_ms(speed.latency_ms_put),
            _rate(speed.bytes_per_ms_get),
            format_ms(speed.latency_ms_get),
        ),
        (
            "",
            "while computing",
            _rate(speed.computing_bytes_per_ms_put),
            format_ms(speed.computing_latency_ms_put),
            _rate(speed.computing_bytes_per_ms_get),
            format_ms(speed.computing_latency_ms_get),
        ),
    ]


def _rate(bytes_per_ms: float) -> str:
    return f"{format_bytes(1e3 * bytes_per_ms)}/s"
