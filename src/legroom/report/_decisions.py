"""A plan's decisions put together: what it does, per module and line.

In go hundreds of decisions, one per tensor; out come rows that a person reads. Modules that differ
only in their numbers, the layers of a transformer, share a row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from legroom.plan import Decision

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(frozen=True, slots=True)
class DecisionGroup:
    """What a plan does with the tensors of one line in one module, or in modules alike.

    Attributes:
        released_bytes: What is not held that the plain step holds; nothing of what is held.
        reason: The one that most bytes have.
    """

    module: str
    line: str
    way: str
    num_tensors: int
    num_bytes: int
    released_bytes: int
    added_ms: float
    reason: str


def group_decisions(decisions: Iterable[Decision]) -> list[DecisionGroup]:
    """Rows by module, line and way; those that release most come first."""
    groups: dict[tuple[str, str, str], list[Decision]] = {}
    for each in decisions:
        key = (_NUMBER.sub("*", each.module), each.line, each.form)
        groups.setdefault(key, []).append(each)
    rows = [_join(members) for members in groups.values()]
    return sorted(
        rows, key=lambda row: (-row.released_bytes, -row.num_bytes, row.module, row.line, row.way)
    )


def sum_by_way(decisions: Iterable[Decision]) -> list[DecisionGroup]:
    """One row per way, without module and line; the largest first."""
    groups: dict[str, list[Decision]] = {}
    for each in decisions:
        groups.setdefault(each.form, []).append(each)
    rows = [_join(members) for members in groups.values()]
    return sorted(rows, key=lambda row: (-row.num_bytes, row.way))


def _join(members: Sequence[Decision]) -> DecisionGroup:
    reasons: Counter[str] = Counter()
    for each in members:
        reasons[each.reason] += max(1, each.num_bytes)
    released_bytes = sum(each.num_bytes - each.held_bytes for each in members)
    return DecisionGroup(
        module=merge_names([each.module for each in members]),
        line=members[0].line,
        way=members[0].form,
        num_tensors=len(members),
        num_bytes=sum(each.num_bytes for each in members),
        # What the plain step does not hold may be held here, for others to be remade from it.
        released_bytes=max(0, released_bytes) if members[0].way == "hold" else released_bytes,
        added_ms=sum(each.added_ms for each in members),
        reason=reasons.most_common(1)[0][0],
    )


def merge_names(names: Sequence[str]) -> str:
    """One name for all: `'h.0.mlp'` and `'h.1.mlp'` are `'h.0–1.mlp'`, with gaps `'h.*.mlp'`."""
    different = list(dict.fromkeys(names))
    if len(different) == 1:
        return different[0]
    numbers = [[int(each) for each in _NUMBER.findall(name)] for name in different]
    spans = iter([_span(column) for column in zip(*numbers, strict=False)])
    return _NUMBER.sub(lambda _: next(spans, "*"), different[0])


def _span(numbers: Sequence[int]) -> str:
    values = sorted(set(numbers))
    if len(values) == 1:
        return str(values[0])
    has_gaps = values[-1] - values[0] + 1 != len(values)
    return "*" if has_gaps else f"{values[0]}–{values[-1]}"
