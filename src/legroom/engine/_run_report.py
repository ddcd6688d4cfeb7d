"""What came of a plan: predicted against measured. Saved as `legroom.run/1`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from legroom.errors import RunFormatError
from legroom.plan import Plan
from legroom.saved import read_record, save_json

SCHEMA = "legroom.run/1"


@final
@dataclass(frozen=True)
class RunReport:
    """What was planned for a training step and what was measured.

    Attributes:
        budget_bytes: Upper bound on the peak, as it was resolved for this step.
        budget: What was asked for, where that is not bytes: `"50 % of the peak"`.
        plain_peak_bytes: Predicted peak of the step as it is.
        predicted_peak_bytes: Of the planned step.
        measured_peak_bytes: The highest peak of the measured steps; None before the first ended.
        resident_peak_bytes: How much the process grew in them; None where that cannot be told.
        step_ms: Median time of a step that was not measured; None before there were some.
        planning_s: Capturing, timing and solving together.
        replans: How often a measurement above the budget led to another plan.
        ways: For each way: how many tensors, and how many bytes they would hold.
        not_planned: What runs as it is, and why.
        added_ms: Predicted time that the plan adds to a step.
        executor_ms: What legroom's own executor adds beside that; see `Plan`.
        preset: The candidate that won: a recipe of the literature, or a solver.
        exactness: Of what the plan uses.
        gradient_error: How far a lossy plan's gradients are off on the first batch: norm of the
            difference over the norm; None where nothing lossy is used.
        rewrites: Names of the rewrites that changed the graphs that run.
        model: What was planned, as `legroom run` names it.
        models: Where several were planned, the report of each; this one then is of the one with
            the largest predicted peak.
    """

    budget_bytes: int
    plain_peak_bytes: int
    predicted_peak_bytes: int
    measured_peak_bytes: int | None
    resident_peak_bytes: int | None
    step_ms: float | None
    planning_s: float
    replans: int
    ways: dict[str, dict[str, int]]
    not_planned: tuple[tuple[str, str], ...]
    added_ms: float = 0.0
    preset: str = ""
    exactness: str = "bitwise"
    gradient_error: float | None = None
    rewrites: tuple[str, ...] = ()
    budget: str = ""
    model: str = ""
    models: tuple[RunReport, ...] = ()
    executor_ms: float = 0.0

    @classmethod
    def of(cls, plan: Plan, **measured: Any) -> RunReport:
        """The report of a plan, with what was measured under it."""
        ways: dict[str, dict[str, int]] = defaultdict(lambda: {"tensors": 0, "bytes": 0})
        for decision in plan.decisions:
            ways[decision.form]["tensors"] += 1
            ways[decision.form]["bytes"] += decision.num_bytes
        return cls(
            predicted_peak_bytes=plan.predicted_peak_bytes,
            added_ms=plan.added_ms,
            executor_ms=plan.executor_ms,
            preset=plan.preset,
            exactness=plan.exactness,
            ways=dict(ways),
            **measured,
        )

    def to_dict(self) -> dict[str, Any]:
        """As `legroom.run/1`."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Any) -> RunReport:
        """The report that `to_dict` gave, also after a way through JSON.

        Raises:
            RunFormatError: A field is missing or wrong.
        """
        return read_record(cls, data, "run", RunFormatError)

    def save(self, path: str | Path) -> None:
        """Write the report as JSON.

        Raises:
            OutputError: The file cannot be written.
        """
        save_json(self.to_dict(), path)
