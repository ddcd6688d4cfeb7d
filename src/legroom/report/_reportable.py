"""What can be shown: a profile or a plan, fresh or from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from legroom.errors import ProfileFormatError
from legroom.meter import Profile
from legroom.plan import PlanReport
from legroom.saved import load_json, schema_of

Reportable = Profile | PlanReport


def data_of(value: Reportable) -> dict[str, Any]:
    """The value as its file has it."""
    return value.to_dict() if isinstance(value, PlanReport) else value.to_json()


def load_report(path: str | Path) -> Reportable:
    """Read what `--json FILE` wrote: a profile or a plan, as its schema says.

    Raises:
        ProfileFormatError: The file is missing, is not JSON, or is neither.
        PlanFormatError: It is a plan, but a field is missing or wrong.
    """
    data = load_json(path, ProfileFormatError, remedy="legroom profile --json FILE script.py")
    if str(schema_of(data)).startswith("legroom.plan/"):
        return PlanReport.from_dict(data)
    return Profile.from_json(data)
