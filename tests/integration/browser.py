"""Pages in a Chromium that reaches no network; a test that needs one is skipped without."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from legroom.report import Reportable, write_html

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\"'"


@contextlib.contextmanager
def launch() -> Iterator[Any]:
    """A Chromium that is installed already, without a window."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        path = None
    if path is None:
        pytest.skip("no Chromium installed: the page was not opened")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield chromium
        chromium.close()


@dataclass
class OpenPage:
    """A page in the browser with what it reads from and what went wrong on it."""

    value: Any
    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def number(self, selector: str, attribute: str = "data-bytes") -> float:
        return float(self.page.locator(selector).get_attribute(attribute))

    def column(self, selector: str, attribute: str) -> list[str]:
        script = "(nodes, name) => nodes.map((node) => node.getAttribute(name))"
        result: list[str] = self.page.locator(selector).evaluate_all(script, attribute)
        return result

    def numbers(self, selector: str, attribute: str = "data-bytes") -> list[float]:
        return [float(value) for value in self.column(selector, attribute)]

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())

    def point_in(self, selector: str, across: float, down: float) -> tuple[float, float]:
        """A point on the screen inside the element, at shares of its width and height."""
        self.page.locator(selector).scroll_into_view_if_needed()
        box = self.page.locator(selector).bounding_box()
        return box["x"] + across * box["width"], box["y"] + down * box["height"]


def open_page(browser: Any, value: Reportable, path: Path) -> OpenPage:
    """Write the page and open it in a window of its own that reaches no network."""
    write_html(value, path)
    return open_file(browser, value, path)


def open_file(browser: Any, value: Any, path: Path) -> OpenPage:
    """Open a page that was written."""
    context = browser.new_context(
        viewport={"width": 1360, "height": 900}, color_scheme="light", reduced_motion="reduce"
    )
    context.set_offline(True)
    opened = OpenPage(value, context.new_page())
    opened.page.on("request", lambda request: opened.requests.append(request.url))
    opened.page.on("pageerror", lambda error: opened.problems.append(str(error)))
    opened.page.on("console", lambda message: opened.problems.append(message.text))
    context.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
    opened.page.goto(path.as_uri())
    opened.page.wait_for_selector("html[data-ready=true]")
    return opened
