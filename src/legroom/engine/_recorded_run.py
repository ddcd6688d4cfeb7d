"""What `legroom verify` asks of the process that runs a script for it, and what that answers.

Plain values that go from one process to the other as JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

MOST_FURTHER_STEPS = 4
"""Run after those that are compared, until the plan that they led to is measured: two plans."""
_OUTCOME = "outcome.json"


@final
@dataclass(frozen=True)
class RecordedRun:
    """What to run and to record.

    Attributes:
        folder: Where everything is written.
        options: As `PlanOptions` has them; None: a plain run.
        num_steps: Steps to record; then the script is ended.
        seed: For Python's, NumPy's and PyTorch's generators, before the script starts.
        most_bytes: Values are kept up to so many bytes.
    """

    folder: str
    target: str
    arguments: tuple[str, ...]
    is_module: bool
    num_steps: int
    most_bytes: int
    options: dict[str, Any] | None = None
    executor: str = "eager"
    leave: tuple[str, ...] = ()
    seed: int = 0


@final
@dataclass(frozen=True)
class Outcome:
    """How a recorded run ended.

    Attributes:
        error: What went wrong, in words for the user; empty if nothing did.
        exit_code: Of the error's class.
        ran_out_of_memory: Whether that is what went wrong.
        traceback: The script's own.
        num_steps: Steps that were recorded.
        num_further_steps: Steps that were run after them, to measure the plan.
        further_error: What went wrong in those.
        report: Of the fitted run, as `legroom.run/1`.
        decisions: What the plans do: module, line, way.
        unreadable: Names of tensors that could not be compared.
    """

    error: str = ""
    exit_code: int = 0
    ran_out_of_memory: bool = False
    traceback: str = ""
    num_steps: int = 0
    num_further_steps: int = 0
    further_error: str = ""
    report: dict[str, Any] | None = None
    decisions: tuple[tuple[str, str, str], ...] = ()
    unreadable: tuple[str, ...] = ()

    def save(self, folder: Path) -> None:
        """Write it beside the recording."""
        (folder / _OUTCOME).write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> Outcome | None:
        """What the run has written; None if it died before."""
        path = folder / _OUTCOME
        return cls(**json.loads(path.read_text())) if path.exists() else None
