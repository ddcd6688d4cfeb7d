"""The page as text: well formed, its data intact, nothing loaded, nothing hostile let through."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import resources
from typing import Any

import pytest
import torch
from torch import nn

from legroom.errors import OutputError
from legroom.meter import Kind, Profile, profile
from legroom.report import _page, render_html, write_html
from tests.html_page import Page
from tests.made_up_plan import made_up_report

HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=\"alert('2')\"> @@data@@ \u2028"


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
    return Page(text).data()


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

    page.check_whole()
    ids = page.ids()
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
    Page(render_html(tiny)).check_offline()


def test_own_program_never_loads_or_writes_markup(tiny: Profile) -> None:
    folder = resources.files("legroom.report") / "assets" / "page"
    program = "\n".join(path.read_text() for path in folder.iterdir())
    pages = render_html(tiny) + render_html(made_up_report())
    assert all(path.read_text() in pages for path in folder.iterdir())

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
    original = _page._asset

    def without_charts(name: str, folder: object = None) -> str:
        text = original(name)
        return text.replace("@@charts@@", "") if name == "page.html" else text

    monkeypatch.setattr(_page, "_asset", without_charts)

    with pytest.raises(AssertionError, match="markers"):
        render_html(tiny)
