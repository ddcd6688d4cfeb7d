"""The shape of a finding, and what finders share.

A finder is a description and one pure function from a `Profile` to findings. Tensors that several
layers hold for the same reason become one finding, so that twelve layers do not fill the page.

See Note [What a finding counts].
"""

# Note [What a finding counts]
# 1. Bytes are what the remedy would do away with, not all that is involved: of a mask of floats
#    where bits would do, 31 parts in 32.
# 2. A storage counts once within a finding. Two findings may count the same storage: a dropout
#    mask inside attention is both.
# 3. Tensors of the stash are counted when the stash is largest. If the peak is elsewhere, the
#    finding says so: removing it makes room, but not at the peak.

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Collection, Iterable
from typing import ClassVar

from legroom.meter._profile import Finding, Keep, Profile, TensorUse
from legroom.units import format_bytes

MINIMUM_SHARE = 0.005
"""Findings below this share of the peak are noise."""

LOW_PRECISION = frozenset({"bfloat16", "float16"})


class AbstractFinder(abc.ABC):
    """Looks for one hidden consumer of memory.

    Attributes:
        name: How the finding is called in files and on the page.
        title: What was found, in a few words.
        remedy: What would remove it.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    remedy: ClassVar[str]

    @abc.abstractmethod
    def find(self, profile: Profile) -> Iterable[Finding]:
        """The findings of this kind in the profile."""

    def report(
        self,
        profile: Profile,
        tensors: Iterable[TensorUse],
        detail: str,
        *,
        waste: Callable[[TensorUse], int] = lambda tensor: tensor.bytes,
    ) -> Iterable[Finding]:
        """One finding over all these tensors, unless they are too small to matter.

        The place named is that of the tensor that wastes most.

        Args:
            profile: Where the tensors are from.
            tensors: What was found; a tensor named twice counts once.
            detail: May name `{count:mask}` ("1 mask", "2 masks"; `{count:copy|copies}`), the
                `{shape}` of the largest and the `{bytes}` of all.
            waste: Bytes of a tensor that need not be. See Note [What a finding counts], rule 1.
        """
        wasted = {tensor: waste(tensor) for tensor in {t.id: t for t in tensors}.values()}
        group = sorted(wasted, key=lambda t: (-wasted[t], -t.bytes, t.id))
        total = sum(wasted.values())
        if not group or total < max(1, MINIMUM_SHARE * profile.peak_bytes):
            return ()
        first = group[0]
        words = detail.format(
            count=_Count(len(group)),
            shape=shape_text(first.shape),
            bytes=format_bytes(sum(tensor.bytes for tensor in group)),
        )
        if not any(tensor.at_peak for tensor in group):
            words += f"; none of it is alive at the peak itself, which is in {profile.peak_phase}"
        return (
            Finding(
                name=self.name,
                title=self.title,
                bytes=total,
                file=first.file,
                line=first.line,
                module=first.module,
                detail=words,
                remedy=self.remedy,
                tensors=tuple(tensor.id for tensor in group),
            ),
        )


class _Count(int):
    """A number that agrees with its noun: `f"{_Count(1):mask}"` is `"1 mask"`."""

    def __format__(self, noun: str) -> str:
        one, _, many = noun.partition("|")
        return f"{int(self)} {one if self == 1 else many or one + 's'}" if noun else str(int(self))


def counted(count: int, noun: str) -> str:
    """The number with its noun: `"1 mask"`, `"2 masks"`; `"copy|copies"` if irregular."""
    return format(_Count(count), noun)


def stash_of(profile: Profile) -> list[TensorUse]:
    """The tensors that are kept for backward when the stash is largest, in order of birth."""
    found = [t for t in profile.tensors if t.kind == "stash" and t.at_stash_peak]
    return sorted(found, key=lambda t: (t.born_ms, t.id))


def keeps_by(
    tensor: TensorUse, operations: Collection[str], fields: Collection[str] = ()
) -> list[Keep]:
    """The keeps of a tensor by one of these operations, under one of these fields if given."""
    return [
        keep
        for keep in tensor.kept_by
        if keep.operation in operations and (not fields or keep.field in fields)
    ]


def num_elements(tensor: TensorUse) -> int:
    """How many numbers the tensor holds."""
    return math.prod(tensor.shape)


def lives_at(tensor: TensorUse, time_ms: float) -> bool:
    """Whether the tensor is alive at that time of the step."""
    return tensor.born_ms <= time_ms and (tensor.died_ms is None or time_ms <= tensor.died_ms)


def most_at_once(tensors: Iterable[TensorUse]) -> list[TensorUse]:
    """Those of the tensors that are alive when most of their bytes are."""
    group = list(tensors)
    changes = [(t.born_ms, 0, t.bytes) for t in group]
    changes += [(t.died_ms, 1, -t.bytes) for t in group if t.died_ms is not None]
    total, most, heaviest_ms = 0, 0, 0.0
    for time_ms, _, amount in sorted(changes):
        total += amount
        if total > most:
            most, heaviest_ms = total, time_ms
    return [t for t in group if lives_at(t, heaviest_ms)]


def shape_text(shape: tuple[int, ...]) -> str:
    """The shape as people read it: `"8×12×512×512"`."""
    return "×".join(map(str, shape)) or "one number"
