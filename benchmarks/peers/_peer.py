"""What a peer is: something that makes a training step need less memory, or runs it as it is.

In goes a case that was just built; out comes the same case, changed, ready to be stepped.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from benchmarks.cases import Case

Setting = Mapping[str, Any]
"""What is swept of a peer, by name; it goes through JSON."""

DEFAULT: Setting = {}


class NotForCaseError(Exception):
    """The peer has nothing to do, or does not work, in this case; the message says why."""


@dataclass(frozen=True)
class Entrant:
    """A case that a peer has changed.

    Attributes:
        case: What is stepped.
        report: What the peer says of itself after its steps, as a JSON object.
    """

    case: Case
    report: Callable[[], dict[str, Any]] = field(default=dict)


class AbstractPeer(ABC):
    """One contestant, with the settings at which its makers would have it measured.

    Attributes:
        name: As tables and `--peers` have it.
        summary: What it does, as a clause.
        exactness: What it claims: `bitwise`, `rounding` or `lossy`.
        rival: Options of `legroom.fit` that meet it on equal terms: the same exactness, the same
            kind of kernels.
        also: Further options with which legroom is run at its peak, to be met by the rival: the
            same for all peers with the same rival.
        settings: What is swept; one empty setting where there is nothing to set.
        quick_settings: Those of them that the quick run measures; none: it leaves the peer out.
        package: What has to be installed, if anything.
        install: How, where it is not `pip install`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    exactness: ClassVar[str]
    rival: ClassVar[Mapping[str, Any]]
    also: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    settings: ClassVar[tuple[Setting, ...]] = (DEFAULT,)
    quick_settings: ClassVar[tuple[Setting, ...]] = ()
    package: ClassVar[str] = ""
    install: ClassVar[str] = ""

    @classmethod
    def missing(cls) -> str:
        """Why it cannot take part on this machine; empty if it can."""
        if not cls.package or importlib.util.find_spec(cls.package) is not None:
            return ""
        how = cls.install or f"pip install -c constraints.txt {cls.package}"
        return f"{cls.package} is not installed ({how})"

    @abstractmethod
    def apply(self, case: Case, setting: Setting) -> Entrant:
        """Change the case, which was just built, in place or as a copy.

        Raises:
            NotForCaseError: It is no case for this peer.
        """


BITWISE: Mapping[str, Any] = {"exactness": "bitwise", "executor": "eager"}
ROUNDING: Mapping[str, Any] = {"exactness": "rounding", "executor": "eager"}
COMPILED: Mapping[str, Any] = {"exactness": "rounding", "executor": "inductor"}
LOSSY: Mapping[str, Any] = {"exactness": "lossy", "executor": "eager"}
LOSSY_COMPILED: Mapping[str, Any] = {"exactness": "lossy", "executor": "inductor"}


def label_of(setting: Setting) -> str:
    """A setting as tables have it: its values."""
    return ", ".join(str(value) for value in setting.values())
