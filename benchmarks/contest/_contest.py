"""The contest on one case: all heats, those measured before taken from the store.

In go a case and options; out comes what the result file has of the case.
"""

from __future__ import annotations

import datetime
import inspect
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.contest._heats import OURS, Heat, draw
from benchmarks.contest._race import HeatOptions, run_heat
from benchmarks.processes import ROOT
from benchmarks.store import Store, fingerprint

ROUNDS = 11
QUICK_ROUNDS = 7
_BYTES_EACH = 3 * 2**29
"""What a contestant's process may need, compiling included."""
_MOST_LIVE = 16
_DEPENDS_ON = ("src/legroom", "benchmarks/cases", "benchmarks/contest", "benchmarks/fitting.py")

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ContestOptions:
    """What the contest is run with; all of it is in the result file.

    Attributes:
        peers: Names of those that take part.
        quick: A few peers at a few settings.
        rounds: How often each contestant takes its turn.
        steps: How many steps a turn has.
        threads: Of PyTorch, for everybody. One: a second core stays for whatever else runs.
        most_live: How many contestants are alive at once.
        shares_cache: Whether legroom finds what it has timed as another contestant, and compiled.
    """

    peers: tuple[str, ...]
    quick: bool = False
    size: str = "small"
    rounds: int = ROUNDS
    steps: int = 1
    threads: int = 1
    most_live: int = 0
    shares_cache: bool = False

    def resolved(self) -> ContestOptions:
        """With as many contestants alive as the machine's memory allows."""
        if self.most_live:
            return self
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return ContestOptions(
            **{**asdict(self), "most_live": max(3, min(_MOST_LIVE, int(memory / _BYTES_EACH)))}
        )


def measure_case(
    name: str,
    options: ContestOptions,
    store: Store,
    *,
    commit: str = "",
    on_progress: OnProgress = lambda what, done, total: None,
) -> dict[str, Any]:
    """All heats of a case; each is stored when it is over.

    Args:
        commit: Noted in every heat that is measured now.
        on_progress: Told what is done, and how many of how many parts are over.
    """
    heats = draw(options.peers, quick=options.quick, most_live=options.most_live)
    return measure_heats(heats, name, options, store, commit=commit, on_progress=on_progress)


def measure_heats(
    heats: Sequence[Heat],
    name: str,
    options: ContestOptions,
    store: Store,
    *,
    commit: str = "",
    on_progress: OnProgress = lambda what, done, total: None,
) -> dict[str, Any]:
    """The same for heats that were drawn otherwise."""
    sizes = [_num_parts(heat, options) for heat in heats]
    done, answers = 0, []
    with tempfile.TemporaryDirectory() as shared:
        for heat, size in zip(heats, sizes, strict=True):
            key = _fingerprint(name, heat, options)
            place = f"contest.{name}.{options.size}.{heat.name}{'.quick' if options.quick else ''}"
            answer = store.get(place, key)
            if answer is None:
                counter = _Counter(f"{name}, {heat.name}", done, sum(sizes), size, on_progress)
                answer = _run(heat, _field(name, options, Path(shared)), counter) | {
                    "commit": commit,
                    "date": f"{datetime.date.today():%Y-%m-%d}",
                }
                store.put(place, key, answer)
            done += size
            on_progress(f"{name}, {heat.name}", done, sum(sizes))
            answers.append(answer)
    return {"heats": answers}


def num_parts(options: ContestOptions) -> int:
    """How much there is to do for a case, in the units that `on_progress` counts."""
    heats = draw(options.peers, quick=options.quick, most_live=options.most_live)
    return num_parts_of(heats, options)


def num_parts_of(heats: Sequence[Heat], options: ContestOptions) -> int:
    """The same for heats that were drawn otherwise."""
    return sum(_num_parts(heat, options) for heat in heats)


def _field(name: str, options: ContestOptions, shared: Path) -> HeatOptions:
    return HeatOptions(
        name,
        options.size,
        options.rounds,
        options.steps,
        options.threads,
        shared if options.shares_cache else None,
    )


def _run(heat: Heat, field: HeatOptions, on_done: Callable[[str], None]) -> dict[str, Any]:
    rows = run_heat(heat, field, on_done=on_done)
    return {
        "name": heat.name,
        "terms": dict(heat.rival) if heat.rival is not None else None,
        "rows": [row.to_dict() for row in rows],
    }


def _num_parts(heat: Heat, options: ContestOptions) -> int:
    """Plain, the entries, a row of legroom's for each, and the rounds; some fall away."""
    return heat.num_fixed + len(heat.entries) * heat.num_each + options.rounds


def _fingerprint(name: str, heat: Heat, options: ContestOptions) -> str:
    modules = {inspect.getfile(peers.get(entry.peer)) for entry in heat.entries}
    modules |= {inspect.getfile(peers.get(OURS)), inspect.getfile(peers.AbstractPeer)}
    paths = [*(ROOT / each for each in _DEPENDS_ON), *(Path(each) for each in sorted(modules))]
    kept = [name, asdict(options) | {"peers": ()}, heat.name]
    return fingerprint(paths, *kept, [(e.label, dict(e.setting)) for e in heat.entries])


class _Counter:
    """Counts the parts of one heat."""

    def __init__(
        self, title: str, before: int, total: int, size: int, on_progress: OnProgress
    ) -> None:
        self._title, self._done, self._total = title, before, total
        self._last, self._on_progress = before + size, on_progress

    def __call__(self, what: str) -> None:
        self._done = min(self._done + 1, self._last)
        self._on_progress(f"{self._title}: {what}", self._done, self._total)
