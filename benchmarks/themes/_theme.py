"""What a theme is: a question, the measurements that answer it, and how they are written down."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.store import Store


@dataclass(frozen=True)
class Run:
    """What the command line asks for, as far as a theme that measures by itself needs it.

    Attributes:
        store: What was measured before, and where to put what is measured now.
        commit: What the code is, as git describes it.
        quick: Measure the part of it that takes minutes.
        peers: Who takes part; empty: everybody.
        rounds: How often each contestant takes its turn; 0: as many as the theme thinks right.
        threads: Of PyTorch, in each process.
        on_progress: Told what is done, and how many of how many parts of a case are over.
    """

    store: Store
    commit: str = ""
    quick: bool = False
    size: str = "small"
    peers: tuple[str, ...] = ()
    rounds: int = 0
    threads: int = 1
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None


@dataclass(frozen=True)
class Theme:
    """A question that one result file answers.

    Attributes:
        name: First word of the result file's name.
        module: What measures: `python -m <module> <case> <part>`, or `<part>` alone for what is
            measured once, prints one JSON object as its last line.
        case_parts: What is measured for each case.
        single_parts: What is measured once.
        about: Settings that the result file states.
        about_of: Further ones, which depend on the command line.
        write_markdown: The result, `{"about", "cases", "singles"}`, as Markdown.
        write_page: The same as one HTML page, if it has one.
        measure: Measures the one part of a case, in processes of its own, in place of `module`.
        num_parts: How much that is for a case, as its progress counts.
        default_cases: Those that are measured where none are named; none: all.
        quick_cases: Those that a quick run measures; none: there is no quick run.
        merge: An old and a new answer to the same part as one, where `--add` is to keep more of the
            old one than the parts that were not measured now.
        write_charts: Pictures for README, if it has any: `results/<theme>_<key>.svg` by key.
    """

    name: str
    module: str
    case_parts: tuple[str, ...]
    write_markdown: Callable[[dict[str, Any]], str]
    single_parts: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    about_of: Callable[[Run], Mapping[str, Any]] = lambda run: {}
    write_page: Callable[[dict[str, Any]], str] | None = None
    measure: Callable[[str, Run], dict[str, Any]] | None = None
    num_parts: Callable[[Run], int] = lambda run: 1
    default_cases: tuple[str, ...] = ()
    quick_cases: tuple[str, ...] = ()
    merge: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] = lambda old, new: new
    write_charts: Callable[[dict[str, Any]], dict[str, str]] | None = None

    def only(self, parts: Collection[str] | None) -> Theme:
        """The theme with only these of its parts; None: with all."""
        if parts is None:
            return self
        return replace(
            self,
            case_parts=tuple(part for part in self.case_parts if part in parts),
            single_parts=tuple(part for part in self.single_parts if part in parts),
        )
