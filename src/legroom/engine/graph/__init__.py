"""Runs captured graphs as a plan says: forward keeps, backward gives back."""

from legroom.engine.graph._executors import (
    Eager,
    Executor,
    choose_executor,
    executors_without,
)
from legroom.engine.graph._gradients import guard, is_distributed
from legroom.engine.graph._planned_call import PlannedCall, Probe, Witness
from legroom.engine.graph._run_notes import new_kind_number, notebook

__all__ = [
    "Eager",
    "Executor",
    "PlannedCall",
    "Probe",
    "Witness",
    "choose_executor",
    "executors_without",
    "guard",
    "is_distributed",
    "new_kind_number",
    "notebook",
]
