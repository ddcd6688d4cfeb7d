"""The tables of a profile: phases, lines, modules, operations, tensors.

In goes a `RecordedStep`; out come the rows that the profile holds, each list in the order in which
people want to read it. Nothing is measured here and nothing is drawn.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict

from legroom.capture import STATE, Kind, Phase, Site, is_user_code, short_name
from legroom.meter._ledger import Block, Keeper
from legroom.meter._profile import (
    Coverage,
    Keep,
    LineUse,
    ModuleUse,
    OperationUse,
    PhaseSpan,
    TensorUse,
)
from legroom.meter._reasons import explain_keep, operation_name
from legroom.meter._step import RecordedStep

_MOST_TENSORS = 3000
_SMALL_BYTES = 1024
_MOST_KEEPERS = 8


class _Times:
    """Milliseconds in forward, backward and the optimizer."""

    def __init__(self) -> None:
        self._ms = dict.fromkeys((Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER), 0.0)

    def add(self, phase: Phase, nanoseconds: int) -> None:
        self._ms[phase] += nanoseconds / 1e6

    def __getitem__(self, phase: Phase) -> float:
        return round(self._ms[phase], 4)


def phase_spans(step: RecordedStep) -> tuple[PhaseSpan, ...]:
    """The phases of the step, in order, with the most that was alive in each."""
    spans = []
    times = [moment.time_ns for moment in step.moments]
    for interval in step.ledger.phases.intervals:
        start_ns = max(interval.start_ns, step.start_ns)
        end_ns = min(interval.end_ns, step.end_ns)
        if end_ns <= start_ns:
            continue
        # From the last moment before the phase, whose total the phase begins with.
        first = max(0, bisect_left(times, start_ns) - 1)
        inside = step.moments[first : max(first + 1, bisect_left(times, end_ns))]
        highest = max(moment.total_bytes for moment in inside)
        spans.append(PhaseSpan(interval.phase.value, step.ms(start_ns), step.ms(end_ns), highest))
    return tuple(spans)


class _LineCost:
    """What one line costs: of its own, and in the lines of libraries that it calls."""

    def __init__(self, function: str) -> None:
        self.function = function
        self.times = _Times()
        self.stash_bytes = self.peak_bytes = 0
        self.called_stash_bytes = self.called_peak_bytes = self.called_ns = 0


def line_uses(step: RecordedStep) -> tuple[LineUse, ...]:
    """What each source line costs, the heaviest first."""
    costs: dict[tuple[str, int], _LineCost] = {}

    def of_line(site: Site) -> _LineCost:
        return costs.setdefault((site.file, site.line), _LineCost(site.function))

    def of_caller(site: Site) -> _LineCost | None:
        key = site.user_file, site.user_line
        if key == (site.file, site.line) or not is_user_code(site.user_file):
            return None
        return costs.setdefault(key, _LineCost(site.user_function))

    for block in step.ledger.blocks:
        site = step.sites[block.index]
        if not site.file:
            continue
        peak_bytes = block.num_bytes * (block.index in step.at_peak)
        stash_bytes = block.num_bytes * _is_stashed(step, block)
        line, caller = of_line(site), of_caller(site)
        line.peak_bytes += peak_bytes
        line.stash_bytes += stash_bytes
        if caller is not None:
            caller.called_peak_bytes += peak_bytes
            caller.called_stash_bytes += stash_bytes
    for op, origin in step.operations:
        site = step.site(origin.site)
        if not site.file:
            continue
        of_line(site).times.add(step.phase_of(op, origin), op.self_ns)
        caller = of_caller(site)
        if caller is not None:
            caller.called_ns += op.self_ns
    uses = [
        LineUse(
            file=short_name(file),
            line=line,
            function=cost.function,
            is_user=is_user_code(file),
            stash_bytes=cost.stash_bytes,
            peak_bytes=cost.peak_bytes,
            forward_ms=cost.times[Phase.FORWARD],
            backward_ms=cost.times[Phase.BACKWARD],
            optimizer_ms=cost.times[Phase.OPTIMIZER],
            called_stash_bytes=cost.called_stash_bytes,
            called_peak_bytes=cost.called_peak_bytes,
            called_ms=round(cost.called_ns / 1e6, 4),
        )
        for (file, line), cost in costs.items()
    ]
    return tuple(
        sorted(uses, key=lambda use: (-use.peak_bytes, -use.stash_bytes, use.file, use.line))
    )


def module_uses(step: RecordedStep) -> tuple[ModuleUse, ...]:
    """What each module costs without the modules inside it, the heaviest first."""
    state: dict[str, int] = defaultdict(int)
    stash: dict[str, int] = defaultdict(int)
    peak: dict[str, int] = defaultdict(int)
    times: dict[str, _Times] = defaultdict(_Times)
    for block in step.ledger.blocks:
        path = step.sites[block.index].module
        if block.index in step.at_peak:
            peak[path] += block.num_bytes
            state[path] += block.num_bytes * (block.kind in STATE)
        stash[path] += block.num_bytes * _is_stashed(step, block)
    for op, origin in step.operations:
        times[step.site(origin.site).module].add(step.phase_of(op, origin), op.self_ns)
    uses = [
        ModuleUse(
            path=path,
            class_name=step.recording.module_classes.get(path, ""),
            state_bytes=state[path],
            stash_bytes=stash[path],
            peak_bytes=peak[path],
            forward_ms=times[path][Phase.FORWARD],
            backward_ms=times[path][Phase.BACKWARD],
        )
        for path in {*peak, *stash, *times}
    ]
    used = [u for u in uses if u.peak_bytes or u.stash_bytes or u.forward_ms or u.backward_ms]
    return tuple(sorted(used, key=lambda use: (-use.peak_bytes, use.path)))


def operation_uses(step: RecordedStep) -> tuple[OperationUse, ...]:
    """What each operation costs, by line and module, the longest first."""
    calls: dict[tuple[str, int], int] = defaultdict(int)
    stash: dict[tuple[str, int], int] = defaultdict(int)
    workspace: dict[tuple[str, int], int] = defaultdict(int)
    times: dict[tuple[str, int], _Times] = defaultdict(_Times)
    for op, origin in step.operations:
        if not origin.label:
            continue
        key = origin.label, origin.site
        times[key].add(step.phase_of(op, origin), op.self_ns)
        calls[key] += not step.origins[op.parent].label and not origin.is_backward
    for block in step.ledger.blocks:
        origin = step.origins[block.operation]
        key = origin.label, origin.site
        stash[key] += block.num_bytes * _is_stashed(step, block)
        if block.kind is Kind.WORKSPACE:
            workspace[key] = max(workspace[key], block.num_bytes)
    uses = []
    for key, spent in times.items():
        site = step.site(key[1])
        uses.append(
            OperationUse(
                name=plain_name(key[0]),
                file=short_name(site.file),
                line=site.line,
                module=site.module,
                count=calls[key],
                forward_ms=spent[Phase.FORWARD],
                backward_ms=spent[Phase.BACKWARD],
                optimizer_ms=spent[Phase.OPTIMIZER],
                stash_bytes=stash[key],
                workspace_bytes=workspace[key],
            )
        )
    return tuple(
        sorted(uses, key=lambda use: -(use.forward_ms + use.backward_ms + use.optimizer_ms))
    )


def tensor_uses(step: RecordedStep) -> tuple[TensorUse, ...]:
    """The blocks of this step, those alive at the peak first, the largest first."""
    told = step.at_peak | step.at_stash_peak
    here = [
        block
        for block in step.ledger.blocks
        if block.born_ns < step.end_ns
        and (block.died_ns is None or block.died_ns > step.start_ns)
        and (block.num_bytes >= _SMALL_BYTES or block.index in told)
    ]
    here.sort(key=lambda block: (-block.num_bytes, block.index))
    kept = here[:_MOST_TENSORS]
    kept.sort(key=lambda b: (b.index not in step.at_peak, -b.num_bytes, b.index))
    return tuple(_tensor_use(step, block) for block in kept)


def _tensor_use(step: RecordedStep, block: Block) -> TensorUse:
    assert block.kind is not None, "a block without a kind is a bug of legroom"
    site = step.sites[block.index]
    name, _ = step.recording.parameters.get(block.owner, ("", ""))
    outlives = block.died_ns is None or block.died_ns > step.end_ns
    return TensorUse(
        id=block.index,
        bytes=block.num_bytes,
        kind=block.kind.value,
        name=f"{name}{block.suffix}" if name else "",
        shape=block.shape,
        dtype=block.dtype,
        operation=plain_name(step.origins[block.operation].label),
        kernel=plain_name(block.kernel),
        file=short_name(site.file),
        line=site.line,
        module=site.module,
        born_ms=step.ms(max(block.born_ns, step.start_ns)),
        died_ms=None if outlives or block.died_ns is None else step.ms(block.died_ns),
        at_peak=block.index in step.at_peak,
        at_stash_peak=block.index in step.at_stash_peak,
        kept_by=_keeps(step, block),
    )


def _keeps(step: RecordedStep, block: Block) -> tuple[Keep, ...]:
    if block.kind is Kind.STASH and not block.keepers and block.last_use >= 0:
        reader = step.recording.stream.operations[block.last_use]
        site = step.site(step.origins[block.last_use].site)
        why = "is read again in backward; a checkpoint, a hook or the script holds it"
        name = plain_name(reader.name)
        return (Keep(name, "", why, short_name(site.file), site.line, site.module),)
    return tuple(_keep(step, keeper) for keeper in itertools.islice(block.keepers, _MOST_KEEPERS))


def _keep(step: RecordedStep, keeper: Keeper) -> Keep:
    site = step.site(step.origins.of_node(keeper.sequence).site)
    return Keep(
        operation=operation_name(keeper.node),
        field=keeper.field,
        why=explain_keep(keeper.node, keeper.field),
        file=short_name(site.file),
        line=site.line,
        module=site.module,
    )


def coverage(step: RecordedStep) -> Coverage:
    """How much of the stash, the peak and the time has a place in the source."""

    def share(blocks: list[Block]) -> float:
        total = sum(block.num_bytes for block in blocks)
        known = sum(
            block.num_bytes
            for block in blocks
            if (site := step.sites[block.index]).file or site.module
        )
        return round(known / total, 4) if total else 1.0

    blocks = step.ledger.blocks
    seen_ns = sum(op.self_ns for op, origin in step.operations if step.site(origin.site).file)
    whole_ms = step.worked_ms(step.start_ns, step.end_ns)
    return Coverage(
        stash_share=share([block for block in blocks if _is_stashed(step, block)]),
        peak_share=share([block for block in blocks if block.index in step.at_peak]),
        time_share=round(min(1.0, seen_ns / 1e6 / whole_ms), 4) if whole_ms else 1.0,
    )


def _is_stashed(step: RecordedStep, block: Block) -> bool:
    """Whether the block is stash that is alive when the stash is largest."""
    return block.kind is Kind.STASH and block.index in step.at_stash_peak


def plain_name(operation: str) -> str:
    """The operation without its namespace: `"aten::mm"` is `"mm"`."""
    return operation.removeprefix("aten::").removeprefix("torch::autograd::")
