"""Progress on stderr: a bar in a terminal, a line per stage elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

OnProgress = Callable[[str, int, int], None]


@contextlib.contextmanager
def progress_on_stderr() -> Iterator[OnProgress]:
    """A function to call with a stage, how much of it is done, and how much there is."""
    if not sys.stderr.isatty():
        yield _print_stages()
        return
    # The script owns the terminal: the bar is drawn only when something moves on, and the
    # script's output is not redirected through it.
    progress = Progress(
        TextColumn("legroom: {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with progress:
        task = progress.add_task("waiting for the first training step", total=None)

        def update(stage: str, done: int, total: int) -> None:
            progress.update(task, description=stage, completed=done, total=total)
            progress.refresh()

        yield update


def _print_stages() -> OnProgress:
    last = ""

    def update(stage: str, done: int, total: int) -> None:
        nonlocal last
        if stage != last:
            plural = "" if total == 1 else "s"
            count = f" ({total} step{plural})" if stage in ("warm-up", "recording") else ""
            print(f"legroom: {stage}{count}", file=sys.stderr)
        last = stage

    return update
