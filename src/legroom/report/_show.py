"""`legroom.show(value)`: the page in a notebook, the tables in a terminal."""

from __future__ import annotations

import html
import sys

from rich.console import Console

from legroom.plan import PlanReport
from legroom.report._html import render_html
from legroom.report._plan_text import print_plan
from legroom.report._reportable import Reportable
from legroom.report._text import print_profile


def show(value: Reportable, *, height_px: int = 900) -> None:
    """Show a profile or a plan where the user is: a page in a notebook, else tables on stdout.

    Args:
        value: What `legroom.profile` or `legroom.plan` returned.
        height_px: Height of the page in a notebook.
    """
    if _in_notebook():
        from IPython.display import HTML, display  # type: ignore[import-not-found,unused-ignore]

        page = html.escape(render_html(value), quote=True)
        style = f'style="width:100%;height:{height_px}px;border:0"'
        display(HTML(f'<iframe srcdoc="{page}" {style}></iframe>'))
        return
    print_report(value, Console())


def print_report(value: Reportable, console: Console, *, num_rows: int = 10) -> None:
    """Print a profile or a plan; `num_rows` bounds its tables."""
    if isinstance(value, PlanReport):
        print_plan(value, console, num_rows=num_rows)
    else:
        print_profile(value, console, num_rows=num_rows)


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    if shell is None:
        return False
    current = shell.get_ipython()
    return current is not None and type(current).__name__ == "ZMQInteractiveShell"
