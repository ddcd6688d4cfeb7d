"""The registry of themes: a result file answers one of them.

To add one: a module that measures, a file here that writes its tables, a line in the tuple.
"""

from benchmarks.themes._contest import CONTEST
from benchmarks.themes._engine import ENGINE
from benchmarks.themes._growth import GROWTH
from benchmarks.themes._ladder import LADDER
from benchmarks.themes._meter import METER
from benchmarks.themes._move import MOVE
from benchmarks.themes._plan import PLAN
from benchmarks.themes._reach import REACH
from benchmarks.themes._shrink import SHRINK
from benchmarks.themes._theme import Run, Theme

__all__ = ["Run", "Theme", "get", "names"]

_THEMES: tuple[Theme, ...] = (METER, PLAN, ENGINE, SHRINK, MOVE, REACH, GROWTH, LADDER, CONTEST)


def names() -> tuple[str, ...]:
    """Names of all themes, in the order in which they run."""
    return tuple(theme.name for theme in _THEMES)


def get(name: str) -> Theme:
    """The theme of that name, which must be one of `names()`."""
    return {theme.name: theme for theme in _THEMES}[name]
