"""Shows what was measured: a table in the terminal, one offline HTML page.

In goes a saved or fresh `Profile`; out comes text or a file. Nothing is measured here.
"""

from legroom.report._html import render_html, write_html
from legroom.report._show import show
from legroom.report._text import print_profile

__all__ = ["print_profile", "render_html", "show", "write_html"]
