"""Where the results of a command go: tables to the terminal, JSON and a page into files.

In go the paths that the user gave, checked before anything runs; then a profile or a plan.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from legroom.errors import OutputError
from legroom.report import Reportable, data_of, print_report, write_html

STDOUT = "-"


class Record(Protocol):
    """What can be saved as JSON."""

    def save(self, path: str) -> None:
        """Write it into a file."""

    def to_dict(self) -> dict[str, Any]:
        """As its file has it."""


def open_console(*, on_stderr: bool = False) -> Console:
    """A console as wide as the terminal; where there is none, as COLUMNS says, or 120 columns."""
    return Console(stderr=on_stderr, width=None if sys.stdout.isatty() else _piped_width())


def _piped_width() -> int:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) > 0 else 120


@dataclass(frozen=True)
class Output:
    """What a command writes.

    Attributes:
        json_path: Absolute; None for no file, `"-"` for stdout.
        html_path: Absolute; None for no file.
        num_rows: Rows in the tables of the terminal.
    """

    json_path: str | None
    html_path: str | None
    num_rows: int

    @classmethod
    def to(cls, json_path: str | None, html_path: str | None, *, num_rows: int) -> Output:
        """Where to write; made absolute, since a script may change the working folder.

        Raises:
            OutputError: A file cannot be written: now, rather than after a long run.
        """
        output = cls(_absolute(json_path), _absolute(html_path), num_rows)
        for path in output._files:
            _check_writable(path)
        return output

    @property
    def _files(self) -> list[str]:
        return [path for path in (self.json_path, self.html_path) if path not in (None, STDOUT)]

    @property
    def is_piped(self) -> bool:
        """Whether the JSON goes to stdout."""
        return self.json_path == STDOUT

    def stdout_kept_clean(self) -> contextlib.AbstractContextManager[object]:
        """With JSON on stdout, what the script prints must not be there too."""
        return contextlib.redirect_stdout(sys.stderr) if self.is_piped else contextlib.nullcontext()

    def deliver(self, result: Reportable) -> None:
        """Save the files, then print: a terminal that is gone must not cost a measurement."""
        page_error = None
        if self.html_path is not None:
            page_error = _save(lambda path: write_html(result, path), self.html_path)
        self._deliver(
            result.save,
            lambda: data_of(result),
            lambda console: print_report(result, console, num_rows=self.num_rows),
            error=page_error,
        )

    def deliver_record(
        self, record: Record, show: Callable[[Console], None], *, on_stderr: bool = False
    ) -> None:
        """The same for what has no page: save it, then `show` it on the console."""
        self._deliver(record.save, record.to_dict, show, on_stderr=on_stderr)

    def _deliver(
        self,
        save: Callable[[str], None],
        data: Callable[[], dict[str, Any]],
        show: Callable[[Console], None],
        *,
        error: OutputError | None = None,
        on_stderr: bool = False,
    ) -> None:
        if self.json_path is not None and not self.is_piped:
            error = _save(save, self.json_path) or error
        console = open_console(on_stderr=self.is_piped or on_stderr)
        show(console)
        if error is not None:
            raise error
        for path in self._files:
            console.print(f"wrote {path}", highlight=False, style="dim")
        if self.is_piped:
            json.dump(data(), sys.stdout)
            print()


def _save(write: Callable[[str], None], path: str) -> OutputError | None:
    """Write a file; if that fails now, write it where there is room, and say so."""
    try:
        write(path)
    except OutputError as error:
        refuge = str(Path(tempfile.mkdtemp(prefix="legroom-")) / Path(path).name)
        write(refuge)
        return OutputError(f"{error}; it is saved as {refuge!r} instead")
    return None


def _check_writable(path: str) -> None:
    """Raise `OutputError` now rather than after a long run if the file cannot be written."""
    target = Path(path)
    existed = target.exists()
    try:
        with open(target, "a"):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot write {path!r}: {error.strerror or error}; "
            "name a file in a folder that exists and that you may write to"
        ) from error
    if not existed:
        with contextlib.suppress(OSError):
            target.unlink()


def _absolute(path: str | None) -> str | None:
    return path if path is None or path == "-" else os.path.abspath(path)
