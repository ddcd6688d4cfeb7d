"""An HTML text taken apart, so that tests can look at its elements."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

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

    def data(self) -> dict[str, Any]:
        """What the page's one data block holds."""
        (block,) = self.data_blocks()
        result = json.loads(block)
        assert isinstance(result, dict)
        return result

    def check_whole(self) -> None:
        """Every tag is closed, and no id is used twice."""
        assert self.mismatched == []
        assert self.open == []
        ids = self.ids()
        assert len(ids) == len(set(ids))

    def ids(self) -> list[str]:
        return [str(attributes["id"]) for _, attributes in self.elements if "id" in attributes]

    def check_offline(self) -> None:
        """Nothing is referred to that lies outside, and the browser is told so."""
        for _, attributes in self.elements:
            for name in ("src", "srcset", "href", "data", "action", "poster"):
                assert (attributes.get(name) or "#").startswith("#")
        assert self.all_of("link") == []
        for _, style in self.all_of("style"):
            assert "@import" not in style
            assert "url(" not in style
        policies = [a["content"] for a, _ in self.all_of("meta") if a.get("http-equiv")]
        assert len(policies) == 1
        assert str(policies[0]).startswith("default-src 'none';")
        assert "http" not in str(policies[0])
