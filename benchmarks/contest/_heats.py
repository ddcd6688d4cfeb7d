"""Who runs with whom: the entries of a case, drawn into heats before anything is measured.

In go the peers that take part; out come heats. In a heat are plain, a few peers that legroom meets
on the same terms, and legroom at the peak of each of them, which is known once they are prepared.
Further heats draw legroom's own line.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import peers
from benchmarks.peers import Setting, label_of

PLAIN, OURS = "plain", "legroom"
AS_IT_COMES = {"glibc": "as it comes"}
"""Of plain: its process is not told to keep freed memory, as everybody else's is."""
LINE: tuple[Setting, ...] = (
    *({"activations": f"{share}%"} for share in (70, 50, 35, 25, 15, 8)),
    {"budget": "lowest"},
)
"""Shares of plain's activations, beside the state, where legroom's line is drawn; at plain's own
peak it is met as a peer."""
LINE_OPTIONS: tuple[Mapping[str, Any], ...] = (
    {"exactness": "bitwise", "executor": "eager"},
    {"exactness": "bitwise", "executor": "eager", "disk": True},
)
"""With Inductor's kernels, which take minutes to compile, the points at others' peaks must do."""


@dataclass(frozen=True)
class Entry:
    """A peer at a setting.

    Attributes:
        title: What tables call it; empty: the peer and its setting.
    """

    peer: str
    setting: Setting
    title: str = ""

    @property
    def label(self) -> str:
        """As tables have it."""
        if self.title:
            return self.title
        label = _our_label(self.setting) if self.peer == OURS else label_of(self.setting)
        return f"{self.peer} ({label})" if label else self.peer


@dataclass(frozen=True)
class Heat:
    """Entries whose steps are timed in turns, beside plain's.

    Attributes:
        name: What it is stored under.
        entries: Without plain, and without legroom at their peaks.
        rival: Options with which legroom meets each entry; None where there is nobody to meet.
        also: Further options with which legroom is run at the same peaks. Its rival meets these
            rows as well: a plan with more to choose from must not be slower than one with less.
        meets_plain: Whether legroom meets plain as well, at its peak.
    """

    name: str
    entries: tuple[Entry, ...]
    rival: Mapping[str, Any] | None
    also: tuple[Mapping[str, Any], ...] = ()
    meets_plain: bool = False

    @property
    def controls(self) -> tuple[Entry, ...]:
        """Plain in further processes: what differs between these is no contestant's doing.

        Where legroom meets plain, one of them has glibc as it comes.
        """
        again = Entry(PLAIN, {}, title=f"{PLAIN}, again")
        return (again, Entry(PLAIN, AS_IT_COMES)) if self.meets_plain else (again,)

    @property
    def num_fixed(self) -> int:
        """How many rows are there whoever takes part."""
        return 1 + len(self.controls) + self.meets_plain

    @property
    def num_each(self) -> int:
        """How many rows an entry leads to: its own, and legroom's at its peak."""
        return 1 if self.rival is None else 2 + len(self.also)

    def room(self, most_live: int) -> int:
        """How many entries it may have, with so many alive at once; one at least."""
        return max(1, (most_live - self.num_fixed) // self.num_each)


def draw(names: Iterable[str], *, quick: bool, most_live: int) -> list[Heat]:
    """The heats of a case.

    Args:
        names: Of the peers that take part; plain always does. If legroom is named, its line is
            drawn as well, but not in a quick run.
        most_live: How many processes may be alive at once.
    """
    chosen = [name for name in peers.names() if name in set(names)]
    heats = []
    plain_terms = peers.get(PLAIN).rival
    met = [name for name in chosen if name not in (PLAIN, OURS) and not peers.get(name).missing()]
    for key, group in _grouped(met).items():
        entries = [Entry(name, each) for name in group for each in _settings(name, quick=quick)]
        first = peers.get(group[0])
        heat = Heat(key, (), first.rival, first.also, meets_plain=first.rival == plain_terms)
        for number, part in enumerate(chunks(entries, heat.room(most_live)), start=1):
            heats.append(replace(heat, name=f"{key} {number}", entries=tuple(part)))
            heat = replace(heat, meets_plain=False)
    if OURS in chosen and not quick:
        heats += _line_heats(most_live=most_live)
    return heats


def terms_of(rival: Mapping[str, Any]) -> str:
    """Legroom's options as a word or three: `bitwise`, `rounding inductor`, `bitwise disk`."""
    words = [rival["exactness"]]
    words += [rival["executor"]] if rival["executor"] != "eager" else []
    return " ".join([*words, *(["disk"] if rival.get("disk") else [])])


def _our_label(setting: Setting) -> str:
    """Legroom's budget and terms; with a bound on the error there may be two of the same budget."""
    budget = setting.get("budget", setting.get("activations"))
    said = f"{budget / 2**20:.2f} MiB" if isinstance(budget, int) else str(budget)
    error = setting.get("max_gradient_error")
    return ", ".join([said, terms_of(setting), *([f"error {error:.1e}"] if error else [])])


def _settings(name: str, *, quick: bool) -> tuple[Setting, ...]:
    peer = peers.get(name)
    return peer.quick_settings if quick else peer.settings


def _grouped(names: list[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(terms_of(peers.get(name).rival), []).append(name)
    return groups


def _line_heats(*, most_live: int) -> Iterable[Heat]:
    for options in LINE_OPTIONS:
        entries = [Entry(OURS, {**level, **options}) for level in LINE]
        heat = Heat(f"line {terms_of(options)}", (), None)
        for number, part in enumerate(chunks(entries, heat.room(most_live)), start=1):
            yield replace(heat, name=f"{heat.name} {number}", entries=tuple(part))


def chunks(entries: list[Entry], size: int) -> Iterable[list[Entry]]:
    """The entries in their order, so many at a time."""
    numbered = itertools.groupby(enumerate(entries), key=lambda pair: pair[0] // size)
    for _, group in numbered:
        yield [entry for _, entry in group]
