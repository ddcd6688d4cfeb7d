"""`legroom.show(value)`: the page in a notebook, the tables in a terminal."""

from __future__ import annotations

import html
import sys

from rich.console import Console

from legroom.engine import RunReport, Verification
from legroom.plan import PlanReport
from legroom.report._html import render_html
from legroom.report._plan_text import print_plan
from legroom.report._reportable import Showable
from legroom.report._run_text import print_run
from legroom.report._text import print_profile
from legroom.report._verify_text import print_verification


def show(value: Showable, *, height_px: int = 900) -> None:
    """Show what was found where the user is: a page in a notebook, else tables on stdout.

    Args:
        value: What `legroom.profile`, `legroom.plan`, `legroom.verify` or a fitted target's
            `report()` returned. Of the latter two there are tables only.
        height_px: Height of the page in a notebook.
    """
    if _in_notebook() and not isinstance(value, RunReport | Verification):
        from IPython.display import HTML, display  # type: ignore[import-not-found,unused-ignore]

        page = html.escape(render_html(value), quote=True)
        style = f'style="width:100%;height:{height_px}px;border:0"'
        display(HTML(f'<iframe srcdoc="{page}" {style}></iframe>'))
        return
    print_report(value, Console())


def print_report(value: Showable, console: Console, *, num_rows: int = 10) -> None:
    """Print it as tables, which `num_rows` bounds."""
    if isinstance(value, RunReport):
        print_run(value, console)
    elif isinstance(value, Verification):
        print_verification(value, console, num_rows=num_rows)
    elif isinstance(value, PlanReport):
        print_plan(value, console, num_rows=num_rows)
    else:
        print_profile(value, console, num_rows=num_rows)


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    if shell is None:
        return False
    current = shell.get_ipython()
    return current is not None and type(current).__name__ == "ZMQInteractiveShell"
