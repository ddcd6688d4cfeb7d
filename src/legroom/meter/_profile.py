"""A `Profile`: where the memory and the time of one training step went, as a plain value.

Out of `build_profile` or a JSON file comes one frozen value; every report reads nothing else. The
format is `legroom.profile/1`, described in docs/profile-format.md.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legroom.errors import ProfileFormatError
from legroom.saved import load_json, read_record, save_json, schema_of

SCHEMA = "legroom.profile/1"


@dataclass(frozen=True, slots=True)
class StepSummary:
    """One recorded step."""

    peak_bytes: int
    profiled_ms: float


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A phase of the step and the most that was alive in it."""

    phase: str
    start_ms: float
    end_ms: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Moment:
    """The books at one moment: the kinds add up to the total."""

    ms: float
    total_bytes: int
    kinds: dict[str, int]


@dataclass(frozen=True, slots=True)
class LineUse:
    """What one source line costs, its backward pass included.

    Attributes:
        is_user: Whether the file belongs to the user's project (not to an installed library).
        stash_bytes: Made by this line and kept for backward, when the stash is largest.
        peak_bytes: Alive because of this line at the peak, all kinds.
        called_stash_bytes: For a line of the user's: the same, of lines of libraries it calls.
        called_peak_bytes: Likewise, at the peak.
        called_ms: Their time, forward, backward and update together.
    """

    file: str
    line: int
    function: str
    is_user: bool
    stash_bytes: int
    peak_bytes: int
    forward_ms: float
    backward_ms: float
    optimizer_ms: float
    called_stash_bytes: int
    called_peak_bytes: int
    called_ms: float


@dataclass(frozen=True, slots=True)
class ModuleUse:
    """What one module costs, without the modules inside it."""

    path: str
    class_name: str
    state_bytes: int
    stash_bytes: int
    peak_bytes: int
    forward_ms: float
    backward_ms: float


@dataclass(frozen=True, slots=True)
class OperationUse:
    """All calls of one operation from one line in one module."""

    name: str
    file: str
    line: int
    module: str
    count: int
    forward_ms: float
    backward_ms: float
    optimizer_ms: float
    stash_bytes: int
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class Keep:
    """An operation that keeps a tensor for its gradient, and why."""

    operation: str
    field: str
    why: str
    file: str
    line: int
    module: str


@dataclass(frozen=True, slots=True)
class TensorUse:
    """One storage: what it is, who made it, how long it lived and who keeps it.

    Attributes:
        operation: The operation, as called, that made it.
        kernel: The operation inside it that allocated the memory.
        died_ms: None if it was still alive when the step ended.
    """

    id: int
    bytes: int
    kind: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    operation: str
    kernel: str
    file: str
    line: int
    module: str
    born_ms: float
    died_ms: float | None
    at_peak: bool
    at_stash_peak: bool
    kept_by: tuple[Keep, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """A hidden consumer of memory: how much, where, and what would remove it."""

    name: str
    title: str
    bytes: int
    file: str
    line: int
    module: str
    detail: str
    remedy: str
    tensors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Limit:
    """Something that was not observed, or only partly."""

    name: str
    text: str
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Coverage:
    """The share of bytes and time that has a source line or a module path, from 0 to 1."""

    stash_share: float
    peak_share: float
    time_share: float


@dataclass(frozen=True, slots=True)
class Profile:
    """One training step: bytes, times, and where both come from; saved as `legroom.profile/1`.

    `docs/profile-format.md` describes every field.

    Attributes:
        peak_bytes: The most that the allocator had handed out at once.
        resident_peak_bytes: How much the process grew over what it held before the first step,
            at its highest; None where the system does not tell.
        opening_bytes: Alive when the step began.
        step_ms: Wall time of a step that was not being recorded; None if there was none.
        profiled_ms: Wall time of the recorded step.
        kinds: Bytes at the peak, by kind; they add up to `peak_bytes`.
        largest_stash_bytes: The stash at its own largest.
        is_complete: False if the script failed or was interrupted within the step.
        sources: Text of the files in `lines`, by name.
        steps: Peak and time of every recorded step; all else is of the one with the highest peak.
        phases: Forward, loss, backward, optimizer and what lies between, in order.
        timeline: The books at about 1,000 moments, the peak among them.
        lines: What each source line costs, heaviest first.
        modules: The same by module, without the modules inside it.
        operations: The same by operation, line and module.
        tensors: Storages, those alive at the peak first, with who keeps them and why.
        findings: Hidden consumers of memory, largest first.
        limits: What was not observed.
    """

    schema: str
    legroom_version: str
    torch_version: str
    python_version: str
    created: str
    command: str
    device: str
    is_complete: bool
    peak_bytes: int
    peak_ms: float
    peak_phase: str
    peak_operation: str
    peak_file: str
    peak_line: int
    peak_module: str
    resident_peak_bytes: int | None
    resident_before_bytes: int | None
    opening_bytes: int
    largest_stash_bytes: int
    kinds: dict[str, int]
    step_ms: float | None
    profiled_ms: float
    coverage: Coverage
    steps: tuple[StepSummary, ...]
    phases: tuple[PhaseSpan, ...]
    timeline: tuple[Moment, ...]
    lines: tuple[LineUse, ...]
    modules: tuple[ModuleUse, ...]
    operations: tuple[OperationUse, ...]
    tensors: tuple[TensorUse, ...]
    findings: tuple[Finding, ...]
    limits: tuple[Limit, ...]
    sources: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """The profile as JSON-ready dictionaries and lists."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Profile:
        """The profile in `data`.

        Raises:
            ProfileFormatError: Not a profile, of another schema, or a field is missing or wrong.
        """
        schema = schema_of(data)
        if schema != SCHEMA:
            raise ProfileFormatError(
                f"this is not a profile that legroom can read: its schema is {schema!r}, "
                f"needed is {SCHEMA!r}; make one with `legroom profile --json FILE script.py`"
            )
        return read_record(cls, data, "profile", ProfileFormatError)

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON.

        Raises:
            OutputError: The file cannot be written.
        """
        save_json(self.to_json(), path)

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Read a profile that `save` wrote.

        Raises:
            ProfileFormatError: The file is missing, is not JSON, or holds no profile.
        """
        remedy = "legroom profile --json FILE script.py"
        return cls.from_json(load_json(path, ProfileFormatError, remedy=remedy))
