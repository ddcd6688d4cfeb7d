"""Carries a plan out: the same training, within the budget.

In goes a model, a function or a whole script; its calls then run as the plan says. Nothing here
decides what is kept: `plan` does.
"""

from legroom.engine._allocator import keep_freed_memory, return_freed_memory
from legroom.engine._calibration import measure_executor
from legroom.engine._compile_backend import compile_backend
from legroom.engine._fit import Fitted, fit
from legroom.engine._run_report import SCHEMA as RUN_SCHEMA
from legroom.engine._run_report import RunReport
from legroom.engine._scripted import RunEvent, ScriptRun, check_budget, fit_script
from legroom.engine._verification import SCHEMA as VERIFY_SCHEMA
from legroom.engine._verification import Difference, ErrorFigures, Verification
from legroom.engine._verify import verify
from legroom.engine._verify_script import check_steps, verify_script
from legroom.engine.graph import choose_executor, executors_without
from legroom.engine.hooks import Offloading, offload

__all__ = [
    "RUN_SCHEMA",
    "VERIFY_SCHEMA",
    "Difference",
    "ErrorFigures",
    "Fitted",
    "Offloading",
    "RunEvent",
    "RunReport",
    "ScriptRun",
    "Verification",
    "check_budget",
    "check_steps",
    "choose_executor",
    "compile_backend",
    "executors_without",
    "fit",
    "fit_script",
    "keep_freed_memory",
    "measure_executor",
    "offload",
    "return_freed_memory",
    "verify",
    "verify_script",
]
