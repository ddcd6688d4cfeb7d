"""Turns a recording into a `Profile`.

In goes a `Recording` and what was measured around it; out comes the profile of the recorded step
with the highest peak. Nothing is measured here and nothing is drawn.
"""

from __future__ import annotations

import datetime
import itertools
import linecache
import os
import platform
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, replace

import torch

from legroom._version import __version__
from legroom.capture import Site, is_model_code, is_user_code
from legroom.meter._events import Operation
from legroom.meter._kinds import STATE, Kind, Phase
from legroom.meter._ledger import Block, Ledger, build_ledger
from legroom.meter._limits import find_limits
from legroom.meter._origins import NO_SITE, Origin, find_origins
from legroom.meter._profile import (
    SCHEMA,
    Coverage,
    Keep,
    LineUse,
    ModuleUse,
    Moment,
    OperationUse,
    PhaseSpan,
    Profile,
    StepSummary,
    TensorUse,
)
from legroom.meter._reasons import explain_keep, operation_name
from legroom.meter._recorder import Recording
from legroom.meter._scopes import Tag
from legroom.meter._timeline import Balance, alive_after, balances, thin_out
from legroom.meter.findings import find_findings

_MOST_MOMENTS = 1000
_MOST_TENSORS = 3000
_SMALL_BYTES = 1024
_MOST_SOURCE_FILES = 20
_MOST_KEEPERS = 8
_NOWHERE = Site("", 0, "", "", "", 0)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What was measured around the recording.

    Attributes:
        command: What ran, for the reader.
        step_ms: A step's wall time without recording.
        resident_peak_bytes: Growth of the process over before the first step.
        resident_before_bytes: What it held then.
        is_complete: False if the last step was cut short.
        notes: Further limits to report.
    """

    command: str = ""
    step_ms: float | None = None
    resident_peak_bytes: int | None = None
    resident_before_bytes: int | None = None
    is_complete: bool = True
    notes: tuple[str, ...] = ()


def build_profile(recording: Recording, surroundings: Surroundings) -> Profile:
    """The profile of the recorded step with the highest peak."""
    return _Builder(recording, surroundings).build()


class _Builder:
    def __init__(self, recording: Recording, surroundings: Surroundings) -> None:
        self._recording = recording
        self._around = surroundings
        self._operations = recording.stream.operations
        self._ledger = build_ledger(recording)
        self._origins = find_origins(recording.stream)
        self._overhead = _Overhead(self._operations)
        self._windows = _windows(self._ledger, self._operations)
        runs = [balances(self._ledger, start, end) for start, end in self._windows]
        peaks = [max(run, key=lambda moment: moment.total_bytes) for run in runs]
        chosen = max(range(len(runs)), key=lambda i: peaks[i].total_bytes)
        self._start_ns, self._end_ns = self._windows[chosen]
        self._moments, self._peak = runs[chosen], peaks[chosen]
        self._steps = tuple(
            StepSummary(peak.total_bytes, self._worked_ms(*window))
            for peak, window in zip(peaks, self._windows, strict=True)
        )
        self._stash_peak = max(self._moments, key=lambda moment: moment.of(Kind.STASH))
        self._at_peak = alive_after(self._ledger, self._peak.change)
        self._at_stash_peak = alive_after(self._ledger, self._stash_peak.change)
        self._makers = self._find_makers()
        self._weight_sites = self._find_weight_sites()
        self._block_sites = [self._site_of_block(block) for block in self._ledger.blocks]

    def build(self) -> Profile:
        tensors = self._tensors()
        peak_site, peak_operation = self._busy_at(self._peak)
        lines = self._lines()
        profile = Profile(
            schema=SCHEMA,
            legroom_version=__version__,
            torch_version=torch.__version__,
            python_version=platform.python_version(),
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            command=self._around.command,
            device=str(self._recording.device),
            is_complete=self._around.is_complete,
            peak_bytes=self._peak.total_bytes,
            peak_ms=self._ms(self._peak.time_ns),
            peak_phase=self._ledger.phases.at(self._peak.time_ns).value,
            peak_operation=peak_operation,
            peak_file=short_name(peak_site.file),
            peak_line=peak_site.line,
            peak_module=peak_site.module,
            resident_peak_bytes=self._around.resident_peak_bytes,
            resident_before_bytes=self._around.resident_before_bytes,
            opening_bytes=self._moments[0].total_bytes,
            largest_stash_bytes=self._stash_peak.of(Kind.STASH),
            kinds=_by_name(self._peak),
            step_ms=self._around.step_ms,
            profiled_ms=self._worked_ms(self._start_ns, self._end_ns),
            coverage=self._coverage(),
            steps=self._steps,
            phases=self._phases(),
            timeline=tuple(
                Moment(self._ms(moment.time_ns), moment.total_bytes, _by_name(moment))
                for moment in thin_out(self._moments, _MOST_MOMENTS)
            ),
            lines=lines,
            modules=self._modules(),
            operations=self._operation_uses(),
            tensors=tensors,
            findings=(),
            limits=find_limits(self._recording, self._ledger, self._around.notes),
            sources=_sources(lines, {short_name(s.file): s.file for s in self._recording.sites}),
        )
        return replace(profile, findings=find_findings(profile))

    # Where things come from

    def _site(self, number: int) -> Site:
        return self._recording.sites[number] if number != NO_SITE else _NOWHERE

    def _find_makers(self) -> dict[int, Origin]:
        """For each autograd node's sequence number, the origin of the operation that made it."""
        return {
            op.sequence: self._origins[op.index]
            for op in self._operations
            if op.sequence >= 0 and not op.node and not self._origins[op.index].is_backward
        }

    def _find_weight_sites(self) -> dict[int, int]:
        """The site at which each parameter is first used in a forward pass."""
        return {
            block.owner: self._origins[block.first_use].site
            for block in self._ledger.blocks
            if block.kind is Kind.WEIGHTS and block.owner and block.first_use >= 0
        }

    def _site_of_block(self, block: Block) -> Site:
        if block.owner:
            _, module = self._recording.parameters.get(block.owner, ("", ""))
            site = self._site(self._weight_sites.get(block.owner, NO_SITE))
            return replace(site, module=module or site.module)
        if block.operation >= 0:
            return self._site(self._origins[block.operation].site)
        return _NOWHERE

    def _label_of_block(self, block: Block) -> str:
        return self._origins[block.operation].label if block.operation >= 0 else ""

    def _busy_at(self, moment: Balance) -> tuple[Site, str]:
        """The line and operation that were at work when the total reached this moment's."""
        if moment.change == 0:
            return _NOWHERE, ""
        block = self._ledger.blocks[self._ledger.changes[moment.change - 1].block]
        return self._block_sites[block.index], _plain(self._label_of_block(block))

    # Times

    def _ms(self, time_ns: int) -> float:
        return self._worked_ms(self._start_ns, time_ns)

    def _worked_ms(self, start_ns: int, end_ns: int) -> float:
        """Time between two moments, without what legroom itself took in between."""
        own = self._overhead.before(end_ns) - self._overhead.before(start_ns)
        return round((end_ns - start_ns - own) / 1e6, 4)

    def _in_window(self) -> list[Operation]:
        return [
            op
            for op in self._operations
            if self._start_ns <= op.start_ns < self._end_ns
            and not self._origins[op.index].is_overhead
        ]

    # The tables

    def _phases(self) -> tuple[PhaseSpan, ...]:
        spans = []
        for interval in self._ledger.phases.intervals:
            start_ns = max(interval.start_ns, self._start_ns)
            end_ns = min(interval.end_ns, self._end_ns)
            if end_ns <= start_ns:
                continue
            inside = [m.total_bytes for m in self._moments if start_ns <= m.time_ns < end_ns]
            before = [m.total_bytes for m in self._moments if m.time_ns < start_ns][-1:]
            spans.append(
                PhaseSpan(
                    interval.phase.value,
                    self._ms(start_ns),
                    self._ms(end_ns),
                    max([*before, *inside], default=self._moments[0].total_bytes),
                )
            )
        return tuple(spans)

    def _lines(self) -> tuple[LineUse, ...]:
        stash: dict[tuple[str, int], int] = defaultdict(int)
        peak: dict[tuple[str, int], int] = defaultdict(int)
        times: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        functions: dict[tuple[str, int], str] = {}
        for block in self._ledger.blocks:
            site = self._block_sites[block.index]
            if not site.file:
                continue
            key = (site.file, site.line)
            functions[key] = site.function
            if block.index in self._at_peak:
                peak[key] += block.num_bytes
            if block.kind is Kind.STASH and block.index in self._at_stash_peak:
                stash[key] += block.num_bytes
        for op in self._in_window():
            origin = self._origins[op.index]
            site = self._site(origin.site)
            if site.file:
                key = (site.file, site.line)
                functions[key] = site.function
                times[key][self._column(op, origin)] += op.self_ns / 1e6
        uses = [
            LineUse(
                file=short_name(file),
                line=line,
                function=functions[file, line],
                is_user=is_user_code(file),
                stash_bytes=stash[file, line],
                peak_bytes=peak[file, line],
                forward_ms=round(times[file, line][0], 4),
                backward_ms=round(times[file, line][1], 4),
                optimizer_ms=round(times[file, line][2], 4),
            )
            for file, line in sorted(functions)
        ]
        return tuple(sorted(uses, key=lambda use: (-use.peak_bytes, -use.stash_bytes, use.file)))

    def _column(self, op: Operation, origin: Origin) -> int:
        """0 forward, 1 backward, 2 optimizer."""
        phase = self._ledger.phases.at(op.start_ns)
        if origin.is_backward or phase is Phase.BACKWARD:
            return 1
        return 2 if phase is Phase.OPTIMIZER else 0

    def _modules(self) -> tuple[ModuleUse, ...]:
        amounts: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0, 0.0, 0.0])
        for block in self._ledger.blocks:
            row = amounts[self._block_sites[block.index].module]
            if block.index in self._at_peak:
                row[2] += block.num_bytes
                row[0] += block.num_bytes if block.kind in STATE else 0
            if block.kind is Kind.STASH and block.index in self._at_stash_peak:
                row[1] += block.num_bytes
        for op in self._in_window():
            origin = self._origins[op.index]
            column = self._column(op, origin)
            if column < 2:
                amounts[self._site(origin.site).module][3 + column] += op.self_ns / 1e6
        classes = self._recording.module_classes
        uses = [
            ModuleUse(
                path=path,
                class_name=classes.get(path, ""),
                state_bytes=int(row[0]),
                stash_bytes=int(row[1]),
                peak_bytes=int(row[2]),
                forward_ms=round(row[3], 4),
                backward_ms=round(row[4], 4),
            )
            for path, row in amounts.items()
            if any(row)
        ]
        return tuple(sorted(uses, key=lambda use: (-use.peak_bytes, use.path)))

    def _operation_uses(self) -> tuple[OperationUse, ...]:
        times: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        calls: dict[tuple[str, int], int] = defaultdict(int)
        stash: dict[tuple[str, int], int] = defaultdict(int)
        workspace: dict[tuple[str, int], int] = defaultdict(int)
        for op in self._in_window():
            origin = self._origins[op.index]
            if not origin.label:
                continue
            key = origin.label, origin.site
            times[key][self._column(op, origin)] += op.self_ns / 1e6
            around = self._origins[op.parent].label if op.parent >= 0 else ""
            calls[key] += not around and not origin.is_backward
        for block in self._ledger.blocks:
            if block.operation < 0:
                continue
            origin = self._origins[block.operation]
            key = origin.label, origin.site
            if block.kind is Kind.STASH and block.index in self._at_stash_peak:
                stash[key] += block.num_bytes
            if block.kind is Kind.WORKSPACE:
                workspace[key] = max(workspace[key], block.num_bytes)
        uses = []
        for key, (forward_ms, backward_ms, optimizer_ms) in times.items():
            label, site = key[0], self._site(key[1])
            uses.append(
                OperationUse(
                    name=_plain(label),
                    file=short_name(site.file),
                    line=site.line,
                    module=site.module,
                    count=calls[key],
                    forward_ms=round(forward_ms, 4),
                    backward_ms=round(backward_ms, 4),
                    optimizer_ms=round(optimizer_ms, 4),
                    stash_bytes=stash[key],
                    workspace_bytes=workspace[key],
                )
            )
        return tuple(
            sorted(uses, key=lambda use: -(use.forward_ms + use.backward_ms + use.optimizer_ms))
        )

    def _tensors(self) -> tuple[TensorUse, ...]:
        """The blocks of this step, largest first; everything alive at the peak comes first."""
        told = self._at_peak | self._at_stash_peak
        here = [
            block
            for block in self._ledger.blocks
            if block.born_ns < self._end_ns
            and (block.died_ns is None or block.died_ns > self._start_ns)
            and (block.num_bytes >= _SMALL_BYTES or block.index in told)
        ]
        here.sort(key=lambda block: (-block.num_bytes, block.index))
        kept = here[:_MOST_TENSORS]
        kept.sort(key=lambda b: (b.index not in self._at_peak, -b.num_bytes, b.index))
        return tuple(self._tensor_use(block) for block in kept)

    def _tensor_use(self, block: Block) -> TensorUse:
        site = self._block_sites[block.index]
        name, _ = self._recording.parameters.get(block.owner, ("", ""))
        assert block.kind is not None, "a block without a kind is a bug of legroom"
        died = block.died_ns if block.died_ns is not None else self._end_ns + 1
        return TensorUse(
            id=block.index,
            bytes=block.num_bytes,
            kind=block.kind.value,
            name=f"{name}{block.suffix}" if name else "",
            shape=block.shape,
            dtype=block.dtype,
            operation=_plain(self._label_of_block(block)),
            kernel=_plain(block.kernel),
            file=short_name(site.file),
            line=site.line,
            module=site.module,
            born_ms=self._ms(max(block.born_ns, self._start_ns)),
            died_ms=self._ms(died) if died <= self._end_ns else None,
            at_peak=block.index in self._at_peak,
            at_stash_peak=block.index in self._at_stash_peak,
            kept_by=self._keeps(block),
        )

    def _keeps(self, block: Block) -> tuple[Keep, ...]:
        if block.kind is Kind.STASH and not block.keepers and block.last_use >= 0:
            reader = self._operations[block.last_use]
            site = self._site(self._origins[block.last_use].site)
            why = "is read again in backward; a checkpoint, a hook or the script holds it"
            name = _plain(reader.name)
            return (Keep(name, "", why, short_name(site.file), site.line, site.module),)
        return tuple(
            self._keep(keeper.node, keeper.field, keeper.sequence)
            for keeper in block.keepers[:_MOST_KEEPERS]
        )

    def _keep(self, node: str, field: str, sequence: int) -> Keep:
        maker = self._makers.get(sequence)
        site = self._site(maker.site) if maker is not None else _NOWHERE
        return Keep(
            operation=operation_name(node),
            field=field,
            why=explain_keep(node, field),
            file=short_name(site.file),
            line=site.line,
            module=site.module,
        )

    def _coverage(self) -> Coverage:
        def share(blocks: list[Block]) -> float:
            total = sum(block.num_bytes for block in blocks)
            known = sum(
                block.num_bytes
                for block in blocks
                if (site := self._block_sites[block.index]).file or site.module
            )
            return round(known / total, 4) if total else 1.0

        blocks = self._ledger.blocks
        seen_ns = sum(
            op.self_ns for op in self._in_window() if self._site(self._origins[op.index].site).file
        )
        whole_ms = self._worked_ms(self._start_ns, self._end_ns)
        return Coverage(
            stash_share=share(
                [b for b in blocks if b.kind is Kind.STASH and b.index in self._at_stash_peak]
            ),
            peak_share=share([b for b in blocks if b.index in self._at_peak]),
            time_share=round(min(1.0, seen_ns / 1e6 / whole_ms), 4) if whole_ms else 1.0,
        )


class _Overhead:
    """How long legroom itself had been at work, at any moment."""

    def __init__(self, operations: list[Operation]) -> None:
        scopes = [op for op in operations if op.tag is Tag.OVERHEAD]
        self._scopes = sorted(scopes, key=lambda op: op.start_ns)
        self._starts = [op.start_ns for op in self._scopes]
        self._sums = [0, *itertools.accumulate(op.duration_ns for op in self._scopes)]

    def before(self, time_ns: int) -> int:
        """Nanoseconds of legroom's own work up to that time."""
        count = bisect_left(self._starts, time_ns)
        running = max(0, self._scopes[count - 1].end_ns - time_ns) if count else 0
        return self._sums[count] - running


def _windows(ledger: Ledger, operations: list[Operation]) -> list[tuple[int, int]]:
    """Start and end of each recorded step; the last one is open if the script was cut short."""
    marks = list(ledger.boundaries_ns)
    end_ns = max((op.end_ns for op in operations), default=0)
    if len(marks) < 2:
        marks = [*(marks or [0]), end_ns]
    return list(itertools.pairwise(marks))


def _by_name(balance: Balance) -> dict[str, int]:
    return {kind.value: amount for kind, amount in zip(Kind, balance.by_kind, strict=True)}


def _plain(operation: str) -> str:
    return operation.removeprefix("aten::").removeprefix("torch::autograd::")


def short_name(file: str) -> str:
    """The file as people name it: within the project, or within its installed package."""
    for marker in ("site-packages", "dist-packages"):
        _, found, rest = file.rpartition(f"{os.sep}{marker}{os.sep}")
        if found:
            return rest
    inside = os.path.relpath(file) if os.path.isabs(file) else file
    return file if inside.startswith(os.pardir) else inside


def _sources(lines: tuple[LineUse, ...], paths: dict[str, str]) -> dict[str, str]:
    """The text of the files that matter most, so that a saved profile can show them."""
    weight: dict[str, float] = defaultdict(float)
    for use in lines:
        weight[use.file] += use.peak_bytes + 1
    files = sorted(weight, key=lambda file: -weight[file])[:_MOST_SOURCE_FILES]
    texts = {}
    for file in files:
        path = paths.get(file, file)
        if is_model_code(path) and (text := "".join(linecache.getlines(path))):
            texts[file] = text
    return texts
