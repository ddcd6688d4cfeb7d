"""What a theme is: a question, the measurements that answer it, and how they are written down."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


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
        write_markdown: The result, `{"about", "cases", "singles"}`, as Markdown.
    """

    name: str
    module: str
    case_parts: tuple[str, ...]
    write_markdown: Callable[[dict[str, Any]], str]
    single_parts: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    def only(self, parts: Collection[str] | None) -> Theme:
        """The theme with only these of its parts; None: with all."""
        if parts is None:
            return self
        return replace(
            self,
            case_parts=tuple(part for part in self.case_parts if part in parts),
            single_parts=tuple(part for part in self.single_parts if part in parts),
        )
