"""The one registry idiom: ways, variants, presets and solvers are each a `Registry` of classes.

In goes a name; out comes the class, or an error that names what there is.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Generic, TypeVar, final

from legroom.errors import UnknownNameError, UsageError

T = TypeVar("T")


@final
class Registry(Generic[T]):
    """Classes by name, in the order in which they were added.

    Args:
        noun: What is in it, for messages: `"way"`.
        built_in: What it holds from the start.
    """

    def __init__(self, noun: str, built_in: tuple[T, ...] = ()) -> None:
        self._noun = noun
        self._entries: dict[str, T] = {}
        for entry in built_in:
            self.register(entry)

    def register(self, entry: T) -> T:
        """Add an entry; third parties call this before planning. Usable as a decorator.

        Raises:
            UsageError: Another entry has that name.
        """
        name = _name_of(entry)
        taken = self._entries.get(name)
        if taken is not None and taken is not entry:
            raise UsageError(f"{self._noun} name {name!r} is already used by {taken!r}")
        self._entries[name] = entry
        return entry

    def unregister(self, name: str) -> None:
        """Take an entry out again."""
        self.get(name)
        del self._entries[name]

    def names(self) -> tuple[str, ...]:
        """All names, in order."""
        return tuple(self._entries)

    def get(self, name: str) -> T:
        """The entry of that name.

        Raises:
            UnknownNameError: There is none.
        """
        try:
            return self._entries[name]
        except KeyError:
            raise unknown_name(self._noun, name, self.names()) from None

    def __iter__(self) -> Iterator[T]:
        return iter(self._entries.values())


def unknown_name(noun: str, name: str, known: tuple[str, ...]) -> UnknownNameError:
    """The error for a name that is not among those known; it suggests a near one."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f". Did you mean {near[0]!r}?" if near else ""
    return UnknownNameError(f"unknown {noun} {name!r}; available: {', '.join(known)}{hint}")


def _name_of(entry: object) -> str:
    name = getattr(entry, "name", None)
    assert isinstance(name, str), f"bug in legroom: {entry!r} has no name"
    return name
