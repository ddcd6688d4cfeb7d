"""The site builds without a warning, its links lead somewhere, and it loads nothing from afar."""

import posixpath
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import legroom
from legroom import errors, layers

ROOT = Path(__file__).parents[2]
HELPERS = {"POINTWISE", "known_activation", "pointwise_name", "rows_at_a_time", "swap"}
"""Of `legroom.layers`: what its own other modules use, and what is documented under `legroom`."""


class Page(HTMLParser):
    """The ids of a page, where it links to, and what it loads."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if "id" in found:
            self.ids.add(found["id"])
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        is_loaded = tag != "link" or found.get("rel") not in ("index", "search", "next", "prev")
        if tag in ("script", "link", "img", "iframe") and is_loaded:
            self.loads += [found[name] for name in ("src", "href") if found.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html",
         "-d", str(folder / "trees"), str(ROOT / "docs"), str(folder / "html")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert build.returncode == 0, build.stderr
    return {
        path.relative_to(folder / "html").as_posix(): Page(path.read_text())
        for path in (folder / "html").rglob("*.html")
    }


def test_every_document_is_a_page(site):
    documents = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert [
        str(each) for each in documents if each.with_suffix(".html").as_posix() not in site
    ] == []


def test_links_and_anchors_resolve(site):
    broken = []
    for name, page in site.items():
        for link in page.links:
            target = urlsplit(link)
            if target.scheme or target.netloc:
                continue
            path = posixpath.join(posixpath.dirname(name), unquote(target.path))
            other = site.get(posixpath.normpath(path) if target.path else name)
            if other is None or (target.fragment and target.fragment not in other.ids):
                broken.append(f"{name}: {link}")
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(site):
    afar = [
        f"{name}: {each}"
        for name, page in site.items()
        for each in page.loads
        if urlsplit(each).netloc
    ]
    assert afar == []


def test_every_public_name_is_in_the_reference(site):
    documented = set().union(*(page.ids for name, page in site.items() if name.startswith("api/")))
    wanted = {f"legroom.{name}" for name in legroom.__all__}
    wanted |= {f"legroom.layers.{name}" for name in set(layers.__all__) - HELPERS}
    wanted |= {
        f"legroom.errors.{name}"
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.LegroomError)
    }
    assert sorted(wanted - documented - {"legroom.LegroomError"}) == []
