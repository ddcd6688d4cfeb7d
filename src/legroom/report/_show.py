"""`legroom.show(profile)`: the page in a notebook, the tables in a terminal."""

from __future__ import annotations

import html
import sys

from legroom.meter import Profile
from legroom.report._html import render_html
from legroom.report._text import print_profile


def show(profile: Profile, *, height_px: int = 900) -> None:
    """Show a profile where the user is: as a page in a notebook, else as tables on stdout.

    Args:
        height_px: Height of the page in a notebook.
    """
    if _in_notebook():
        from IPython.display import HTML, display  # type: ignore[import-not-found,unused-ignore]

        page = html.escape(render_html(profile), quote=True)
        style = f'style="width:100%;height:{height_px}px;border:0"'
        display(HTML(f'<iframe srcdoc="{page}" {style}></iframe>'))
        return
    from rich.console import Console

    print_profile(profile, Console())


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    if shell is None:
        return False
    current = shell.get_ipython()
    return current is not None and type(current).__name__ == "ZMQInteractiveShell"
