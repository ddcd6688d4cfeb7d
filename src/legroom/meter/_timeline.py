"""The running balance of a ledger: totals by kind after every change, within one step.

In go a ledger and a window of time; out come the moments of the window, its peak, and what was
alive at any moment. The long list of moments is thinned for people; the peak always stays in.
"""

from __future__ import annotations

from dataclasses import dataclass

from legroom.capture import Kind
from legroom.meter._ledger import Ledger


@dataclass(frozen=True, slots=True)
class Balance:
    """The books after one change.

    Attributes:
        change: How many changes of the ledger had happened.
        by_kind: Bytes in the order of `Kind`.
    """

    time_ns: int
    change: int
    total_bytes: int
    by_kind: tuple[int, ...]

    def of(self, kind: Kind) -> int:
        """Bytes of one kind."""
        return self.by_kind[_ORDER[kind]]


_ORDER = {kind: index for index, kind in enumerate(Kind)}


def balances(ledger: Ledger, start_ns: int, end_ns: int) -> list[Balance]:
    """The balance at the start of the window and after every change in it."""
    amounts = [0] * len(_ORDER)
    for block in ledger.blocks:
        if block.is_opening and block.kind is not None:
            amounts[_ORDER[block.kind]] += block.num_bytes
    found: list[Balance] = []
    opening: Balance = Balance(start_ns, 0, sum(amounts), tuple(amounts))
    for count, change in enumerate(ledger.changes, start=1):
        if change.time_ns > end_ns:
            break
        kind = ledger.blocks[change.block].kind
        assert kind is not None, "a block without a kind is a bug of legroom"
        amounts[_ORDER[kind]] += change.delta_bytes
        balance = Balance(change.time_ns, count, sum(amounts), tuple(amounts))
        if change.time_ns < start_ns:
            opening = Balance(start_ns, count, balance.total_bytes, balance.by_kind)
        else:
            found.append(balance)
    return [opening, *found]


def alive_after(ledger: Ledger, change: int) -> set[int]:
    """Indices of the blocks that are alive after that many changes."""
    alive = {block.index for block in ledger.blocks if block.is_opening}
    for item in ledger.changes[:change]:
        if item.delta_bytes > 0:
            alive.add(item.block)
        else:
            alive.discard(item.block)
    return alive


def thin_out(moments: list[Balance], limit: int) -> list[Balance]:
    """At most about `limit` moments: the highest and the last of each bucket of equal length."""
    if len(moments) <= limit:
        return moments
    width = -(-2 * len(moments) // limit)
    kept: list[Balance] = []
    for start in range(0, len(moments), width):
        bucket = moments[start : start + width]
        highest = max(bucket, key=lambda moment: moment.total_bytes)
        kept.extend([highest] if highest is bucket[-1] else [highest, bucket[-1]])
    return kept if kept[0] is moments[0] else [moments[0], *kept]
