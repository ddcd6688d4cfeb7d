"""Turns a recording into a `Profile`.

In goes a `Recording` and what was measured around it; out comes the profile of the recorded step
with the highest peak. Nothing is measured here and nothing is drawn.
"""

from __future__ import annotations

import datetime
import linecache
import platform
from collections import defaultdict
from dataclasses import dataclass, replace

import torch

from legroom._version import __version__
from legroom.capture import Kind, is_model_code, short_name
from legroom.meter import _tables as tables
from legroom.meter._limits import find_limits
from legroom.meter._profile import SCHEMA, LineUse, Moment, Profile
from legroom.meter._recorder import Recording
from legroom.meter._step import RecordedStep
from legroom.meter._timeline import Balance, thin_out
from legroom.meter.findings import find_findings

_MOST_MOMENTS = 1000
_MOST_SOURCE_FILES = 20


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


def build_profile(recording: Recording, around: Surroundings) -> Profile:
    """The profile of the recorded step with the highest peak."""
    step = RecordedStep(recording)
    peak_site, peak_label = step.busy_at(step.peak)
    lines = tables.line_uses(step)
    profile = Profile(
        schema=SCHEMA,
        legroom_version=__version__,
        torch_version=torch.__version__,
        python_version=platform.python_version(),
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        command=around.command,
        device=str(recording.device),
        is_complete=around.is_complete,
        peak_bytes=step.peak.total_bytes,
        peak_ms=step.ms(step.peak.time_ns),
        peak_phase=step.ledger.phases.at(step.peak.time_ns).value,
        peak_operation=tables.plain_name(peak_label),
        peak_file=short_name(peak_site.file),
        peak_line=peak_site.line,
        peak_module=peak_site.module,
        resident_peak_bytes=around.resident_peak_bytes,
        resident_before_bytes=around.resident_before_bytes,
        opening_bytes=step.moments[0].total_bytes,
        largest_stash_bytes=step.stash_peak.of(Kind.STASH),
        kinds=_by_name(step.peak),
        step_ms=around.step_ms,
        profiled_ms=step.worked_ms(step.start_ns, step.end_ns),
        coverage=tables.coverage(step),
        steps=step.steps,
        phases=tables.phase_spans(step),
        timeline=tuple(
            Moment(step.ms(moment.time_ns), moment.total_bytes, _by_name(moment))
            for moment in thin_out(step.moments, _MOST_MOMENTS)
        ),
        lines=lines,
        modules=tables.module_uses(step),
        operations=tables.operation_uses(step),
        tensors=tables.tensor_uses(step),
        findings=(),
        limits=find_limits(recording, step.ledger, around.notes),
        sources=_sources(lines, recording),
    )
    return replace(profile, findings=find_findings(profile))


def _by_name(balance: Balance) -> dict[str, int]:
    return {kind.value: amount for kind, amount in zip(Kind, balance.by_kind, strict=True)}


def _sources(lines: tuple[LineUse, ...], recording: Recording) -> dict[str, str]:
    """The text of the files that matter most, so that a saved profile can show them."""
    paths = {short_name(site.file): site.file for site in recording.sites}
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
