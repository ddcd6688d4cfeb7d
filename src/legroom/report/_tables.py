"""Tables in the terminal: figures aligned right, words that give way, long paths cut in front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

LINE_WIDTH = 40
_LEAST_PATH = 16
_GAP = 2


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
        wrapping: The columns that may take several lines; the others never do.
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


@final
@dataclass(frozen=True, slots=True)
class NarrowTable:
    """A table whose rows take one line each, however narrow the console is.

    Paths are cut in front, so that a file's name and line stay. Remarks are cut at their end, and
    left out where too little room is left for them. Where even short paths do not fit, the last
    column of them goes too.

    Attributes:
        columns: Their names, from the left.
        figures: The columns that hold figures, with the least width of each.
        paths: The columns that hold paths, the most important first.
        remarks: The columns of words, with the least width that is worth showing.
    """

    columns: Sequence[str]
    figures: Mapping[str, int]
    paths: Sequence[str] = ()
    remarks: Mapping[str, int] | None = None

    def print(
        self,
        rows: Sequence[Sequence[str]],
        console: Console,
        *,
        title: str,
        last: Sequence[str] | None = None,
    ) -> None:
        """Print rows of plain text, and a dim one below them."""
        every = [*rows, *([last] if last is not None else [])]
        widths = self._widths(every, console.width)
        table = make_table(*widths, title=title, figures=self.figures)
        for column in table.columns:
            column.style = "dim" if column.header in (self.remarks or {}) else ""
        for row in every:
            cells = dict(zip(self.columns, row, strict=True))
            table.add_row(
                *(escape(self._cut(name, cells[name], width)) for name, width in widths.items()),
                style="dim" if row is last else None,
            )
        console.print(table)

    def _cut(self, name: str, text: str, width: int) -> str:
        if name in self.paths:
            return shorten(text, width)
        if name in (self.remarks or {}) and len(text) > width:
            return text[: width - 1] + "…"
        return text

    def _widths(self, rows: Sequence[Sequence[str]], width: int) -> dict[str, int]:
        """The width of each column that is shown."""
        widths = {
            name: max([len(name), self.figures.get(name, 0), *(len(row[i]) for row in rows)])
            for i, name in enumerate(self.columns)
        }
        most = min(LINE_WIDTH, max(24, width // 3))
        widths.update({name: min(widths[name], most) for name in self.paths})
        for name, least in (self.remarks or {}).items():
            left = widths[name] - _excess(widths, width)
            if left < min(least, widths[name]):
                del widths[name]
            else:
                widths[name] = min(left, widths[name])
        paths = list(self.paths)
        while paths and _excess(widths, width) > 0:
            widest = max(paths, key=lambda name: widths[name])
            if widths[widest] > _LEAST_PATH:
                widths[widest] -= 1
            elif len(paths) > 1:
                del widths[paths.pop()]
            else:
                break
        return widths


def _excess(widths: Mapping[str, int], width: int) -> int:
    """By how much the columns are wider than the console."""
    return sum(widths.values()) + _GAP * (len(widths) - 1) - width
