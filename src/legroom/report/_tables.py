"""Tables in the terminal: figures aligned right, words that give way, long paths cut in front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

LINE_WIDTH = 40


def make_table(
    *columns: str,
    title: str,
    figures: Mapping[str, int],
    words: Mapping[str, int] | None = None,
    wrapping: Sequence[str] = (),
) -> Table:
    """A table without lines around its cells.

    Args:
        columns: Their names, from the left.
        figures: The columns that hold figures, with the least width of each.
        words: The least width of others.
        wrapping: The columns that may take several lines; the others are cut off.
    """
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    least = {**figures, **(words or {})}
    for name in columns:
        table.add_column(
            name,
            justify="right" if name in figures else "left",
            no_wrap=name not in wrapping,
            min_width=least.get(name),
            header_style="dim",
        )
    return table


def shorten(text: str, limit: int = LINE_WIDTH) -> str:
    """The end of a long path: the file's name says more than the folder's."""
    return text if len(text) <= limit else "…" + text[1 - limit :]
