"""What the result files of all themes share: Markdown tables, and figures as people read them."""

from __future__ import annotations


def table(head: list[str], body: list[list[str]]) -> list[str]:
    """The lines of a Markdown table; rows that are too short are filled up."""
    rule = ["---", *("--:" for _ in head[1:])]
    filled = [[*row, *([""] * (len(head) - len(row)))] for row in body]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *filled)]


def mib(count: float) -> str:
    """Bytes in MiB."""
    return f"{count / 2**20:.1f}"


def percent(share: float) -> str:
    """A share in per cent."""
    return f"{100 * share:.2f} %"
