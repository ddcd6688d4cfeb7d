"""One HTML file that opens without a network: shell, style, charts, program and data inlined.

In go the description of a page and its data; out comes the text. The page draws itself from its one
JSON block and measures nothing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from legroom.capture import Kind

_MARKER = re.compile(r"@@([a-z-]+)@@")
_STYLE = "page.css"
_CHARTS = "echarts.min.js"


@dataclass(frozen=True)
class Page:
    """What one kind of page is made of.

    Attributes:
        title: What the browser shows until the program sets it.
        sections: Asset with the sections of the page.
        links: Those of them that the bar at the top leads to: id and text.
        program: Parts of the program, in `assets/page/`, in order.
        folder: Where sections and parts are looked for first; pages outside this package have one.
    """

    title: str
    sections: str
    links: tuple[tuple[str, str], ...]
    program: tuple[str, ...]
    folder: Path | None = None


def render_page(page: Page, data: dict[str, Any]) -> str:
    """The page as one text of about 1 MiB plus the size of its data."""
    parts = {
        "title": page.title,
        "style": _asset(_STYLE),
        "links": "\n".join(f'      <a href="#{name}">{text}</a>' for name, text in page.links),
        "sections": _asset(page.sections, page.folder),
        "data": _json_block(data),
        "charts": _asset(_CHARTS),
        "program": _program(page),
    }
    return _fill(_asset("page.html"), parts)


def _asset(name: str, folder: Path | None = None) -> str:
    if folder is not None and (folder / name).exists():
        return (folder / name).read_text(encoding="utf-8")
    return (resources.files("legroom.report") / "assets" / name).read_text(encoding="utf-8")


def _program(page: Page) -> str:
    """The page's program: its parts share one scope and leave nothing in the window's."""
    body = "\n".join(_asset(f"page/{name}.js", page.folder) for name in page.program)
    return f'"use strict";\n(() => {{\n{body}}})();\n'


def _fill(template: str, parts: dict[str, str]) -> str:
    """The template with each marker replaced once; what is put in is not searched again."""
    markers = _MARKER.findall(template)
    assert sorted(markers) == sorted(parts), (
        f"the template has the markers {sorted(markers)}, needed are {sorted(parts)}: "
        "a bug of legroom"
    )
    return _MARKER.sub(lambda match: parts[match.group(1)], template)


def _json_block(data: dict[str, Any]) -> str:
    """The data and the list of kinds; `<` is escaped, so no text in it can end the block."""
    kinds = [{"name": kind.value, "title": kind.title, "meaning": kind.meaning} for kind in Kind]
    text = json.dumps({**data, "kind_list": kinds}, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")
