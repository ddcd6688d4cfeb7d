"""The page of a profile: one HTML file that opens without a network.

In goes a `Profile`; out comes text with the charts, the style and the data inlined. The page draws
itself from its one JSON block and measures nothing.
"""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

from legroom.errors import OutputError
from legroom.meter import Kind, Profile

_MARKER = re.compile(r"@@([a-z-]+)@@")
_ASSETS = {"style": "profile.css", "charts": "echarts.min.js"}
_PROGRAM = (
    "data", "units", "elements", "places", "table", "verdict", "books", "tensor_columns",
    "timeline", "findings", "source", "modules", "tensors", "operations", "limits", "theme",
    "start",
)  # fmt: skip


def render_html(profile: Profile) -> str:
    """The profile as one HTML page of about 1 MiB plus the profile's own size."""
    parts = {marker: _asset(name) for marker, name in _ASSETS.items()}
    parts["program"] = _program()
    parts["data"] = _json_block(profile)
    return _fill(_asset("profile.html"), parts)


def write_html(profile: Profile, path: str | Path) -> None:
    """Write the page.

    Raises:
        OutputError: The file cannot be written.
    """
    text = render_html(profile)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


def _asset(name: str) -> str:
    return (resources.files("legroom.report") / "assets" / name).read_text(encoding="utf-8")


def _program() -> str:
    """The page's program: its parts share one scope and leave nothing in the window's."""
    body = "\n".join(_asset(f"page/{name}.js") for name in _PROGRAM)
    return f'"use strict";\n(() => {{\n{body}}})();\n'


def _fill(template: str, parts: dict[str, str]) -> str:
    """The template with each marker replaced once; what is put in is not searched again."""
    markers = _MARKER.findall(template)
    assert sorted(markers) == sorted(parts), (
        f"the template has the markers {sorted(markers)}, needed are {sorted(parts)}: "
        "a bug of legroom"
    )
    return _MARKER.sub(lambda match: parts[match.group(1)], template)


def _json_block(profile: Profile) -> str:
    """The profile and the list of kinds; `<` is escaped, so no text in it can end the block."""
    kinds = [{"name": kind.value, "title": kind.title, "meaning": kind.meaning} for kind in Kind]
    data = {**profile.to_json(), "kind_list": kinds}
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")
