"""The page as text: well formed, its data intact, nothing loaded, nothing hostile let through."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from typing import Any

import pytest
import torch
from torch import nn

from legroom.errors import OutputError
from legroom.meter import Kind, Profile, profile
from legroom.report import _html
from legroom.report._html import render_html, write_html

HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=\"alert('2')\"> @@data@@ \u2028"
VOID = {"meta", "input", "br", "img", "link", "hr", "wbr"}


class Page(HTMLParser):
    """Elements with their attributes, text by element, and tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, str] = {}
        self.open: list[tuple[str, int]] = []
        self.mismatched: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append((tag, len(self.elements)))
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1][0] == tag:
            self.open.pop()
        else:
            self.mismatched.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open:
            number = self.open[-1][1]
            self.texts[number] = self.texts.get(number, "") + data

    def all_of(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [
            (attributes, self.texts.get(number, ""))
            for number, (name, attributes) in enumerate(self.elements)
            if name == tag
        ]

    def data_blocks(self) -> list[str]:
        return [text for attributes, text in self.all_of("script") if "type" in attributes]


@pytest.fixture(scope="module")
def tiny() -> Profile:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs = torch.randn(4, 8)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

    return profile(step, warmup=1)


def data_of(text: str) -> dict[str, Any]:
    (block,) = Page(text).data_blocks()
    result = json.loads(block)
    assert isinstance(result, dict)
    return result


def with_hostile_names(profile: Profile) -> Profile:
    return replace(
        profile,
        command=HOSTILE,
        peak_module=HOSTILE,
        lines=tuple(replace(line, file=HOSTILE) for line in profile.lines),
        modules=tuple(replace(module, path=HOSTILE) for module in profile.modules),
        tensors=tuple(replace(tensor, name=HOSTILE) for tensor in profile.tensors),
        sources={HOSTILE: HOSTILE},
    )


def test_page_is_well_formed(tiny: Profile) -> None:
    page = Page(render_html(tiny))

    assert page.mismatched == []
    assert page.open == []
    ids = [str(attributes["id"]) for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {"verdict", "books", "timeline", "findings", "source"} <= set(ids)
    assert {"modules", "tensors", "operations", "limits"} <= set(ids)


def test_data_block_equals_the_profile(tiny: Profile) -> None:
    data = data_of(render_html(tiny))

    kinds = data.pop("kind_list")
    assert data == json.loads(json.dumps(tiny.to_json()))
    assert data["peak_bytes"] == sum(data["kinds"].values())
    assert [kind["name"] for kind in kinds] == [kind.value for kind in Kind]


def test_every_kind_has_title_and_colour(tiny: Profile) -> None:
    text = render_html(tiny)

    listed = {kind["name"]: kind for kind in data_of(text)["kind_list"]}
    for kind in Kind:
        assert listed[kind.value]["title"] == kind.title
        assert listed[kind.value]["meaning"] == kind.meaning
        assert re.search(rf"--kind-{kind.value}: #[0-9a-f]{{6}};", text)
    colours = re.findall(r"--kind-\w+: (#[0-9a-f]{6});", text)
    assert len(set(colours)) == len(Kind)


def test_page_refers_to_nothing_outside(tiny: Profile) -> None:
    page = Page(render_html(tiny))

    for _, attributes in page.elements:
        for name in ("src", "srcset", "href", "data", "action", "poster"):
            assert (attributes.get(name) or "#").startswith("#")
    assert page.all_of("link") == []
    for _, style in page.all_of("style"):
        assert "@import" not in style
        assert "url(" not in style
    policies = [a["content"] for a, _ in page.all_of("meta") if a.get("http-equiv")]
    assert len(policies) == 1
    assert str(policies[0]).startswith("default-src 'none';")
    assert "http" not in str(policies[0])


def test_own_program_never_loads_or_writes_markup(tiny: Profile) -> None:
    folder = resources.files("legroom.report") / "assets" / "page"
    program = "\n".join(path.read_text() for path in folder.iterdir())
    page = render_html(tiny)
    assert all(path.read_text() in page for path in folder.iterdir())

    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in program
    for word in ("http:", "https:", "fetch(", "XMLHttpRequest", "WebSocket", "import("):
        assert word not in program


def test_hostile_names_stay_data(tiny: Profile) -> None:
    hostile = with_hostile_names(tiny)

    text = render_html(hostile)

    page = Page(text)
    assert page.mismatched == []
    assert len(page.all_of("script")) == 3
    assert page.all_of("img") == []
    assert HOSTILE not in text
    data = data_of(text)
    assert data["command"] == HOSTILE
    assert data["sources"] == {HOSTILE: HOSTILE}
    (block,) = page.data_blocks()
    assert "<" not in block


def test_lone_surrogate_in_source_is_written(tiny: Profile, tmp_path: Any) -> None:
    path = tmp_path / "page.html"

    write_html(replace(tiny, sources={"odd.py": "name = '\udc80'"}), path)

    assert data_of(path.read_text(encoding="utf-8"))["sources"] == {"odd.py": "name = '\udc80'"}


def test_write_html_writes_what_render_returns(tiny: Profile, tmp_path: Any) -> None:
    path = tmp_path / "page.html"

    write_html(tiny, str(path))

    assert path.read_text(encoding="utf-8") == render_html(tiny)


def test_unwritable_path_raises_output_error(tiny: Profile, tmp_path: Any) -> None:
    path = tmp_path / "missing" / "page.html"

    with pytest.raises(OutputError, match=r"cannot write '.*page\.html': No such file"):
        write_html(tiny, path)


def test_missing_marker_is_found(tiny: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    original = _html._asset

    def without_charts(name: str) -> str:
        text = original(name)
        return text.replace("@@charts@@", "") if name == "profile.html" else text

    monkeypatch.setattr(_html, "_asset", without_charts)

    with pytest.raises(AssertionError, match="markers"):
        render_html(tiny)
