"""Ways, variants and presets as tables in the terminal, one of them in full, and as data."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from legroom import variants, ways
from legroom.engine import executors_without
from legroom.plan import presets
from legroom.registry import unknown_name
from legroom.report._tables import make_table
from legroom.ways import AbstractTechnique, Exactness

_LISTS = ("ways", "variants", "presets")


def ways_data() -> dict[str, Any]:
    """Every registered way, variant and preset, with all that it says of itself."""
    return {
        "schema": "legroom.ways/1",
        "ways": [_describe(ways.get(name)) for name in ways.names()],
        "variants": [_describe(variants.get(name)) for name in variants.names()],
        "presets": [_describe_preset(each) for each in presets.all_presets()],
    }


def way_data(name: str) -> dict[str, Any]:
    """What the way, variant or preset of that name says of itself.

    Raises:
        UnknownNameError: There is none.
    """
    data = ways_data()
    entries = {each["name"]: each for key in _LISTS for each in data[key]}
    if name not in entries:
        raise unknown_name("way, variant or preset", name, tuple(entries))
    return dict(entries[name])


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
    console.print("\n[dim]legroom ways NAME: when to use one, and what it does not go with[/dim]")


def print_way(name: str, console: Console) -> None:
    """Print all that one way, variant or preset says of itself.

    Raises:
        UnknownNameError: There is none of that name.
    """
    each = way_data(name)
    console.print(f"[bold]{escape(name)}[/bold], a {each['kind']}: {escape(each['summary'])}")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for label, text in facts_of(each):
        table.add_row(label, escape(text))
    console.print(table)


def facts_of(each: dict[str, Any]) -> list[tuple[str, str]]:
    """What there is to know of an entry, as pairs of a label and a text; `docs/ways/` has it too.

    Args:
        each: Of `way_data`.
    """
    executors = (f"Executor `{name}`." for name in each["not_with_executors"])
    not_with = [each["not_with"], *executors]
    found = [
        ("when", each["when"]),
        ("what it costs", each["costs"]),
        ("exactness", each["exactness"]),
        ("error", f"{each['error']:g} of the norm, of normal numbers" if each["error"] else ""),
        ("used", each["used"]),
        ("made of", ", ".join(each["uses"])),
        ("in Python", each["python"]),
        ("in a terminal", each["command"]),
        ("leave it out", each["left_out"]),
        ("not with", " ".join(text for text in not_with if text)),
        ("origin", each["origin"]),
    ]
    return [(label, text) for label, text in found if text]


def _describe(entry: type[AbstractTechnique]) -> dict[str, Any]:
    kind, used = _use_of(entry)
    arguments, options = _exactness_of(entry.exactness)
    argument, option = f'ways=["{entry.name}"]', f"--with {entry.name}"
    can_leave = entry is not ways.Hold
    if issubclass(entry, ways.AbstractMove):
        argument, option, can_leave = entry.argument, entry.option, False
    return {
        "name": entry.name,
        "kind": kind,
        "summary": entry.summary,
        "exactness": entry.exactness.value,
        "error": entry.error,
        "costs": entry.costs,
        "when": entry.when,
        "used": used,
        "uses": (),
        "python": f'legroom.fit(model, budget="50%", {argument}{arguments})',
        "command": f"legroom run --budget 50% {option}{options} train.py",
        "left_out": f'without=["{entry.name}"], --without {entry.name}' if can_leave else "",
        "not_with": entry.not_with,
        "not_with_executors": executors_without(entry.name),
        "origin": entry.origin,
    }


def _describe_preset(entry: type[presets.AbstractPreset]) -> dict[str, Any]:
    exactness = entry.exactness()
    arguments, options = _exactness_of(exactness)
    where = f"in every plan{_at(exactness)}"
    if ways.Disk.name in entry.uses:
        where = "in every plan that may use the disk"
        arguments, options = f", disk=True{arguments}", f" --disk FOLDER{options}"
    return {
        "name": entry.name,
        "kind": "preset",
        "summary": entry.summary,
        "exactness": exactness.value,
        "error": 0.0,
        "costs": entry.costs,
        "when": entry.when,
        "used": f"competes {where}; followed alone where it is named",
        "uses": entry.uses,
        "python": f'legroom.fit(model, budget="50%", preset="{entry.name}"{arguments})',
        "command": f"legroom run --budget 50% --preset {entry.name}{options} train.py",
        "left_out": "",
        "not_with": entry.not_with,
        # A recipe does without a way that an executor has not, unless it is about that way.
        "not_with_executors": executors_without(
            *(name for name in entry.uses if ways.get(name).is_on_request)
        ),
        "origin": entry.origin,
    }


def _use_of(entry: type[AbstractTechnique]) -> tuple[str, str]:
    """What it is, and when a plan uses it without being told to."""
    if issubclass(entry, variants.AbstractRewrite):
        if entry.costs_time:
            return "rewrite", (
                f"in reserve{_at(entry.exactness)}: where no plan fits without it, or goes as low; "
                "at once where it is named"
            )
        where = f"wherever it is found{_at(entry.exactness)}"
        return "rewrite", f"{where}, unless it is left out"
    kind = "variant" if issubclass(entry, variants.AbstractVariant) else "way"
    if issubclass(entry, ways.AbstractWay) and entry.is_on_request:
        return kind, "on request only"
    if entry is ways.Hold:
        return kind, "in every plan"
    return kind, f"in every plan{_at(entry.exactness)} that is better for it, unless it is left out"


def _at(exactness: Exactness) -> str:
    """For which plans: those that allow it."""
    allowed = [each.value for each in Exactness if each.allows(exactness)]
    return "" if len(allowed) == len(Exactness) else f" at exactness {' and '.join(allowed)}"


def _exactness_of(exactness: Exactness) -> tuple[str, str]:
    """What to say beside it, in Python and on the command line."""
    if exactness is Exactness.BITWISE:
        return "", ""
    return f', exactness="{exactness.value}"', f" --exactness {exactness.value}"
