"""What planning hands over: one plan, and the frontier of plans over budgets.

Plain frozen values that can be saved as JSON (`legroom.plan/1`); reports and the engine read them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from legroom.errors import PlanFormatError
from legroom.saved import load_json, read_record, save_json, schema_of
from legroom.ways import DEVICE

SCHEMA = "legroom.plan/1"

_RENAMED = {"exactness": "plan_exactness", "solve_s": "plan_solve_s"}
"""Fields of the chosen plan whose names the report's own fields have in the file."""


@final
@dataclass(frozen=True, slots=True)
class Decision:
    """What the plan does with one tensor that backward needs.

    Attributes:
        tensor: Its name in the graph.
        way: Name of the way: `"hold"`, `"remake"`.
        num_bytes: What it would hold in the plain step.
        held_bytes: What is held instead, between forward and backward.
        added_ms: Time that this way of it adds to the step.
        operation: Name of the operation that makes it.
        reason: Why, in a clause.
        tier: Where it is held: `"device"`, `"disk"`.
        moved_bytes: What goes there and comes back, as it is or encoded.
    """

    tensor: str
    way: str
    num_bytes: int
    held_bytes: int
    added_ms: float
    module: str
    line: str
    operation: str
    reason: str
    tier: str = DEVICE
    moved_bytes: int = 0

    @property
    def form(self) -> str:
        """The way, and where it is held if that is not what the way says."""
        is_elsewhere = self.tier not in (DEVICE, self.way)
        return f"{self.way} on {self.tier}" if is_elsewhere else self.way


@final
@dataclass(frozen=True, slots=True)
class LiveTensor:
    """Something that is alive at the peak."""

    name: str
    kind: str
    num_bytes: int
    module: str
    line: str


@final
@dataclass(frozen=True)
class Plan:
    """A way for each tensor, with the peak and the time that the simulator predicts.

    Attributes:
        budget_bytes: Upper bound on the peak.
        predicted_peak_bytes: The peak, as the simulator predicts it.
        added_ms: Predicted time that the plan adds to a step.
        executor_ms: What legroom's own executor adds beside that, whatever the plan is; nothing
            where the step runs as it is. See Note [Executor time].
        bound_ms: No plan within the budget, of the enabled ways and in this order of operations,
            adds less than this.
        gap: (added − bound) / (plain step time + bound).
        preset: Which candidate won: a preset of the literature, or `"milp"`, `"greedy"`.
        decisions: What happens to each tensor that backward needs.
        alive_at_peak: What stands in the way of a lower peak, largest first.
        exactness: Of what the plan uses.
        solve_s: How long solving for this budget took.
        order: `"captured"`, or `"memory"` where backward's operations were put in another order.
        variants: Operations of backward with another formula than PyTorch's: node and variant.
        timeline: Bytes alive after operations, some hundreds of points: position, bytes.
        phases: Where each phase begins among the timeline's positions: phase, position.
        peak_phase: The phase in which the peak is.
        stash_bytes: The most that forward leaves for backward.
        timed_out: Whether the solver stopped at its time limit.
    """

    budget_bytes: int
    predicted_peak_bytes: int
    added_ms: float
    bound_ms: float
    gap: float
    preset: str
    exactness: str = "bitwise"
    order: str = "captured"
    solve_s: float = 0.0
    timed_out: bool = False
    peak_phase: str = ""
    stash_bytes: int = 0
    executor_ms: float = 0.0
    decisions: tuple[Decision, ...] = ()
    variants: tuple[tuple[str, str], ...] = ()
    alive_at_peak: tuple[LiveTensor, ...] = ()
    timeline: tuple[tuple[int, int], ...] = ()
    phases: tuple[tuple[str, int], ...] = ()

    @property
    def moved_bytes(self) -> dict[str, list[int]]:
        """Bytes of each tensor that is held on a tier besides the device, by the tier's name."""
        found: dict[str, list[int]] = {}
        for each in self.decisions:
            if each.moved_bytes:
                found.setdefault(each.tier, []).append(each.moved_bytes)
        return found


@final
@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """The best plan for one budget."""

    budget_bytes: int
    predicted_peak_bytes: int
    added_ms: float
    bound_ms: float
    gap: float
    preset: str


@final
@dataclass(frozen=True, slots=True)
class PresetPoint:
    """What a recipe of the literature reaches on the same graph."""

    name: str
    summary: str
    predicted_peak_bytes: int
    added_ms: float


@final
@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One value of a script argument that was varied, and whether a step with it fits.

    Attributes:
        phases: Peak of each phase of the plain step: `{"forward": ..., "backward": ...}`.
        floor_peak_bytes: The lowest peak that a plan reaches.
        fits: Whether a plan fits the budget.
    """

    value: int
    plain_peak_bytes: int
    floor_peak_bytes: int
    phases: dict[str, int]
    fits: bool
    added_ms: float | None = None


@final
@dataclass(frozen=True)
class PlanReport:
    """Everything that `legroom plan` shows; saved as `legroom.plan/1`.

    Attributes:
        target: The command or callable that was planned.
        plain_peak_bytes: Predicted peak of the step as it is.
        floor_peak_bytes: The lowest peak that any plan with the enabled ways reaches.
        state_bytes: Weights, gradients and optimizer state.
        step_ms: Predicted time of the plain step; the sum of its operations' times.
        measured_share: Share of `step_ms` that was measured rather than modelled.
        rewrites: Names of the rewrites that changed the captured step.
        frontier: From the plain peak down to the floor.
        chosen: The plan for the budget that was asked for, if one was.
        not_planned: What could not be captured or planned, and why: what, why, bytes.
        sweep: Where a script argument was varied: the values tried.
        swept_argument: The argument that was varied.
        asked_budget: The budget that was asked for, where that is not bytes: `"50 % of the peak"`.
        peak_kinds: Bytes at the plain step's peak, by kind.
        phase_peaks: Peak of each phase of the plain step; `--vary` forecasts from these.
    """

    target: str
    device: str
    torch_version: str
    plain_peak_bytes: int
    floor_peak_bytes: int
    state_bytes: int
    step_ms: float
    measured_share: float
    num_tensors: int
    num_operations: int
    num_pieces: int
    ways: tuple[str, ...]
    exactness: str
    capture_s: float
    solve_s: float
    frontier: tuple[FrontierPoint, ...]
    presets: tuple[PresetPoint, ...]
    chosen: Plan | None = None
    not_planned: tuple[tuple[str, str, int | None], ...] = ()
    sweep: tuple[SweepPoint, ...] = ()
    swept_argument: str = ""
    asked_budget: str = ""
    peak_kinds: dict[str, int] = field(default_factory=dict)
    phase_peaks: dict[str, int] = field(default_factory=dict)
    rewrites: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The report as `legroom.plan/1` has it: the chosen plan's fields at the top."""
        data = asdict(self)
        chosen = data.pop("chosen") or {"budget_bytes": None}
        return {
            "schema": SCHEMA,
            **data,
            **{_RENAMED.get(name, name): value for name, value in chosen.items()},
        }

    @classmethod
    def from_dict(cls, data: Any) -> PlanReport:
        """The report that `to_dict` gave, also after a way through JSON.

        Raises:
            PlanFormatError: Not a plan, of another schema, or a field is missing or wrong.
        """
        schema = schema_of(data)
        if schema != SCHEMA:
            raise PlanFormatError(
                f"this is not a plan that legroom can read: its schema is {schema!r}, "
                f"needed is {SCHEMA!r}; make one with `legroom plan --json FILE script.py`"
            )
        chosen = None
        if data.get("budget_bytes") is not None:
            own = {name: data[key] for name, key in _RENAMED.items() if key in data}
            chosen = {**data, **own}
        return read_record(cls, {**data, "chosen": chosen}, "plan", PlanFormatError)

    def save(self, path: str | Path) -> None:
        """Write the report as JSON.

        Raises:
            OutputError: The file cannot be written.
        """
        save_json(self.to_dict(), path)

    @classmethod
    def load(cls, path: str | Path) -> PlanReport:
        """Read a report that `save` wrote.

        Raises:
            PlanFormatError: The file is missing, is not JSON, or holds no plan.
        """
        remedy = "legroom plan --json FILE script.py"
        return cls.from_dict(load_json(path, PlanFormatError, remedy=remedy))
