"""How Sphinx makes the site out of this folder; `make docs` runs it, with warnings as errors.

Nothing is loaded from elsewhere, neither when the site is built nor when it is read.
"""

import re
from pathlib import Path

from legroom import __version__

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/legroom/legroom/blob/main"

project = "legroom"
author = "the legroom authors"
version = release = __version__
html_title = f"legroom {__version__}"
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
highlight_language = "text"  # what has no language is a command or its output
pygments_style = "friendly"
pygments_dark_style = "native"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

default_role = "literal"  # docstrings have `names` in single backticks, as Markdown has
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_class_signature = "separated"
python_display_short_literal_types = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Limits", "returns_style")]
add_module_names = False
toc_object_entries = False

LINK = re.compile(r"(?<=\]\()(\.\.?/[^)\s#]+)(?=[)#])")


def link_to_the_repository(app, document, source):
    """Links that lead out of this folder, to code and results, lead to the repository."""
    place = (ROOT / "docs" / f"{document}.md").parent

    def linked(match):
        target = (place / match[1]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return match[1]
        assert target.exists(), f"{document}.md links to {match[1]}, which is not there"
        return f"{REPOSITORY}/{target.relative_to(ROOT).as_posix()}"

    source[0] = LINK.sub(linked, source[0])


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", link_to_the_repository)
    return {"parallel_read_safe": True}
