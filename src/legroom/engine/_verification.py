"""What came of comparing plain and fitted training. Saved as `legroom.verify/1`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from legroom.engine._run_report import RunReport
from legroom.errors import RunFormatError
from legroom.saved import read_record, save_json

SCHEMA = "legroom.verify/1"


@final
@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor that is not the same in both runs.

    Attributes:
        step: From 1.
        kind: `"losses"`, `"gradients"`, `"buffers"`, `"parameters"`, `"optimizer state"` or
            `"random states"`.
        name: `"h.0.attn.c_attn.weight"`.
        module: The module that it belongs to; empty if none.
        line: The source line of that module whose tensors are not held; empty if none is.
        way: How the plan gives that module's tensors back: `"remake"`, several with commas.
        largest_difference: Of any two elements; None where only one run has it, values were too
            large to keep, or a difference is not finite.
        relative_error: Norm of the difference over norm of the plain tensor; None as above.
    """

    step: int
    kind: str
    name: str
    module: str = ""
    line: str = ""
    way: str = ""
    largest_difference: float | None = None
    relative_error: float | None = None


@final
@dataclass(frozen=True, slots=True)
class ErrorFigures:
    """How far the runs are apart in one kind, over all steps.

    Attributes:
        largest_difference: Of any two elements; None where it is not finite.
        relative_error: The largest over the steps of norm of all differences over norm of all.
    """

    largest_difference: float | None
    relative_error: float | None


@final
@dataclass(frozen=True)
class Verification:
    """Whether fitted training is the same as plain training.

    Attributes:
        target: What was run.
        equal: The answer; the truth value of the result as well.
        exactness: What was asked for, and is judged by.
        tolerance: The largest relative error that counts as equal; 0: the same bits.
        steps: Training steps that were compared.
        compared: How many tensors, by kind, over all steps.
        different: What is not the same, in the order in which a step makes it.
        errors: How far apart the runs are, by kind; without an entry where they are bit-equal.
        run: What was planned and measured in the fitted run.
        notes: What else there is to know.
    """

    target: str
    equal: bool
    exactness: str
    tolerance: float
    steps: int
    compared: dict[str, int]
    different: tuple[Difference, ...] = ()
    errors: dict[str, ErrorFigures] = field(default_factory=dict)
    run: RunReport | None = None
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether they are equal."""
        return self.equal

    def to_dict(self) -> dict[str, Any]:
        """As `legroom.verify/1`."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Any) -> Verification:
        """The result that `to_dict` gave, also after a way through JSON.

        Raises:
            RunFormatError: A field is missing or wrong.
        """
        return read_record(cls, data, "verification", RunFormatError)

    def save(self, path: str | Path) -> None:
        """Write the result as JSON.

        Raises:
            OutputError: The file cannot be written.
        """
        save_json(self.to_dict(), path)
