"""One heat: everybody is prepared, legroom at the others' peaks; then they take turns.

In goes a heat; out come rows, one for each contestant, those that failed among them.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.contest._heats import AS_IT_COMES, OURS, PLAIN, Entry, Heat
from benchmarks.contest._process import Worker

PREPARE_TIMEOUT_S = 1200.0
STEP_TIMEOUT_S = 300.0
SAME_PEAK = 0.01
"""Peaks that are this close, as a share, are met by the same row of legroom's: at the lower."""

OnDone = Callable[[str], None]
Start = Callable[..., Worker]


@dataclass
class Row:
    """One contestant in one heat.

    Attributes:
        measured: What its worker answered, together.
        rival: Label of legroom's row at its peak; empty where there is none.
    """

    entry: Entry
    measured: dict[str, Any] = field(default_factory=dict)
    rival: str = ""
    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    @property
    def is_ready(self) -> bool:
        """Whether it trained."""
        return self.measured.get("status") == "ready"

    def to_dict(self) -> dict[str, Any]:
        """As the result file has it."""
        return {
            "peer": self.entry.peer,
            "setting": dict(self.entry.setting),
            "label": self.entry.label,
            "rival": self.rival,
            "wall_ms": self.wall_ms,
            "cpu_ms": self.cpu_ms,
            **self.measured,
        }


@dataclass(frozen=True)
class HeatOptions:
    """What holds for every contestant of a heat.

    Attributes:
        rounds: How often each takes its turn.
        steps: How many steps a turn has.
        threads: Of PyTorch, in each process.
        legroom_cache: A folder in which legroom finds what it has timed as another contestant;
            None: everybody times anew.
    """

    case: str
    size: str
    rounds: int
    steps: int
    threads: int
    legroom_cache: Path | None = None


def run_heat(
    heat: Heat,
    options: HeatOptions,
    *,
    on_done: OnDone = lambda what: None,
    start: Start = Worker,
) -> list[Row]:
    """Run one heat; about a gigabyte for each contestant that is alive.

    Args:
        on_done: Told of each contestant that is prepared and each round that is over.
        start: Makes a contestant's process, given further variables of its environment.
    """
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        field_ = _Field(stack, options, Path(folder), on_done, start)
        field_.leave_reference()
        plain = field_.prepare(Entry(PLAIN, {}))
        controls = [field_.prepare(entry) for entry in heat.controls]
        met = [field_.prepare(entry) for entry in heat.entries]
        rows = [plain, *controls, *met]
        if heat.rival is not None:
            rows += _add_rivals([plain, *met] if heat.meets_plain else met, heat, field_)
        field_.take_turns(rows)
        field_.finish(rows)
    return rows


def _add_rivals(rows: list[Row], heat: Heat, field_: _Field) -> list[Row]:
    """Legroom at the peak of each row; close peaks share one, at the lowest of them."""
    assert heat.rival is not None, "called for heats with somebody to meet"
    added: list[Row] = []
    ready = sorted((row for row in rows if row.is_ready), key=_peak)
    while ready:
        lowest = ready[0]
        near = [row for row in ready if _peak(row) <= (1 + SAME_PEAK) * _peak(lowest)]
        ready = ready[len(near) :]
        rival = field_.prepare(Entry(OURS, _rival_setting(near, heat.rival)))
        further = [field_.prepare(Entry(OURS, _rival_setting(near, less))) for less in heat.also]
        for row in (*near, *further):
            row.rival = rival.entry.label
        added += [rival, *further]
    return added


def _rival_setting(near: list[Row], options: Mapping[str, Any]) -> dict[str, Any]:
    """A lossy rival must keep to the smallest error among those it meets."""
    setting = {"budget": _peak(near[0]), **options}
    errors = [row.measured.get("gradient_off", 0.0) for row in near]
    if options["exactness"] == "lossy" and min(errors) > 0:
        setting["max_gradient_error"] = min(errors)
    return setting


def _kind(entry: Entry) -> str:
    """Whoever compiles: what one does not get compiled, none does. Otherwise the peer itself."""
    executor = entry.setting.get("executor", peers.get(entry.peer).rival["executor"])
    return "compiled" if executor == "inductor" else entry.peer


def _peak(row: Row) -> int:
    return int(row.measured["peak_bytes"])


class _Field:
    """The contestants that are alive."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        options: HeatOptions,
        folder: Path,
        on_done: OnDone,
        start: Start,
    ) -> None:
        self._stack, self._options, self._folder = stack, options, folder
        self._on_done, self._start = on_done, start
        self._workers: dict[int, Worker] = {}
        self._num_started = 0
        self._too_slow: dict[str, str] = {}

    def leave_reference(self) -> None:
        """What loss and gradients are compared with; nothing is, if plain cannot run."""
        with self._start(env=self._environment()) as worker:
            worker.ask("reference", timeout_s=PREPARE_TIMEOUT_S, **self._about())

    def prepare(self, entry: Entry) -> Row:
        """A contestant that has warmed up, or what went wrong."""
        row = Row(entry)
        slow = self._too_slow.get(_kind(entry))
        if slow is not None:
            row.measured = {"status": "not tried", "why": f"{slow} took too long to prepare"}
            self._on_done(entry.label)
            return row
        worker = self._stack.enter_context(self._start(env=self._environment()))
        row.measured = worker.ask(
            "prepare",
            timeout_s=PREPARE_TIMEOUT_S,
            peer=entry.peer,
            setting=dict(entry.setting),
            keeps_freed=entry.setting != AS_IT_COMES,
            **self._about(),
        )
        if row.is_ready:
            self._workers[id(row)] = worker
        else:
            worker.close()
        if row.measured["status"] == "timeout":
            self._too_slow[_kind(entry)] = entry.label
        self._on_done(entry.label)
        return row

    def _about(self) -> dict[str, Any]:
        return {
            "case": self._options.case,
            "size": self._options.size,
            "threads": self._options.threads,
            "plain_file": str(self._folder / "plain.pt"),
        }

    def _environment(self) -> dict[str, str]:
        """Nobody finds what was compiled or timed before, or by another, unless it is shared."""
        self._num_started += 1
        caches = self._folder / f"caches-{self._num_started}"
        return {
            "OMP_NUM_THREADS": str(self._options.threads),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "LEGROOM_CACHE_DIR": str(self._options.legroom_cache or caches / "legroom"),
        }

    def take_turns(self, rows: list[Row]) -> None:
        """Round after round, each time from another contestant on."""
        for number in range(self._options.rounds):
            alive = [row for row in rows if row.is_ready]
            first = number % max(1, len(alive))
            for row in alive[first:] + alive[:first]:
                self._time(row)
            self._on_done(f"round {number + 1}")

    def finish(self, rows: list[Row]) -> None:
        """What is measured last, and the end of each process."""
        for row in rows:
            if row.is_ready:
                answer = self._workers[id(row)].ask("finish", timeout_s=STEP_TIMEOUT_S)
                answer.pop("status", None)
                row.measured |= answer
                self._workers.pop(id(row)).close()

    def _time(self, row: Row) -> None:
        worker = self._workers[id(row)]
        answer = worker.ask("time", timeout_s=STEP_TIMEOUT_S, steps=self._options.steps)
        if "wall_ms" not in answer:
            row.measured |= answer  # no longer ready
            worker.close()
            return
        row.wall_ms += answer["wall_ms"]
        row.cpu_ms += answer["cpu_ms"]
