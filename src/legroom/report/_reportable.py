"""What can be shown, fresh or from a file: profiles and plans, as a page too; what came of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from legroom.engine import RUN_SCHEMA, VERIFY_SCHEMA, RunReport, Verification
from legroom.errors import ProfileFormatError
from legroom.meter import Profile
from legroom.plan import PlanReport
from legroom.saved import load_json, schema_of

Reportable = Profile | PlanReport
Showable = Reportable | RunReport | Verification


def data_of(value: Reportable) -> dict[str, Any]:
    """The value as its file has it."""
    return value.to_dict() if isinstance(value, PlanReport) else value.to_json()


def load_report(path: str | Path) -> Showable:
    """Read what `--json FILE` wrote, as its schema says.

    Raises:
        ProfileFormatError: The file is missing, is not JSON, or nothing of ours.
        PlanFormatError: It is a plan, but a field is missing or wrong.
        RunFormatError: It is of a run or a verification, but a field is missing or wrong.
    """
    data = load_json(path, ProfileFormatError, remedy="legroom profile --json FILE script.py")
    schema = str(schema_of(data))
    if schema.startswith("legroom.plan/"):
        return PlanReport.from_dict(data)
    if schema == RUN_SCHEMA:
        return RunReport.from_dict(data)
    if schema == VERIFY_SCHEMA:
        return Verification.from_dict(data)
    return Profile.from_json(data)
