"""The list of ways, variants and presets as a table in the terminal, and as data."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from legroom import variants, ways
from legroom.plan import presets
from legroom.report._tables import make_table


def ways_data() -> dict[str, Any]:
    """Every registered way, variant and preset: what it does, its origin; of the former two also
    how exact it is and what it costs."""
    return {
        "schema": "legroom.ways/1",
        "ways": [_describe(ways.get(name)) for name in ways.names()],
        "variants": [_describe(variants.get(name)) for name in variants.names()],
        "presets": [
            {"name": each.name, "summary": each.summary, "origin": each.origin}
            for each in presets.all_presets()
        ],
    }


def print_ways(console: Console) -> None:
    """Print every registered way, variant and preset."""
    data = ways_data()
    titles = {
        "ways": "Ways to give a tensor back",
        "variants": "\nVariants: other formulas, of a backward operation or of a part of the graph",
    }
    for key, title in titles.items():
        table = make_table(
            "name", "exactness", "what it does", "what it costs", "origin",
            title=title, figures={}, wrapping=("what it does", "what it costs", "origin"),
        )  # fmt: skip
        for each in data[key]:
            table.add_row(
                f"[bold]{escape(each['name'])}[/bold]",
                each["exactness"],
                escape(each["summary"]),
                escape(each["costs"]),
                f"[dim]{escape(each['origin'])}[/dim]",
            )
        console.print(table)
    table = make_table(
        "name", "what it keeps", "origin",
        title="\nPresets: recipes of the literature, which every plan starts from",
        figures={}, wrapping=("what it keeps", "origin"),
    )  # fmt: skip
    for each in data["presets"]:
        table.add_row(
            f"[bold]{escape(each['name'])}[/bold]",
            escape(each["summary"]),
            f"[dim]{escape(each['origin'])}[/dim]",
        )
    console.print(table)


def _describe(entry: type[ways.AbstractTechnique]) -> dict[str, str]:
    return {
        "name": entry.name,
        "summary": entry.summary,
        "exactness": entry.exactness.value,
        "costs": entry.costs,
        "origin": entry.origin,
    }
