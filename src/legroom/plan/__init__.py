"""What would fit, and what it would cost: a plan for a training step under a budget in bytes.

In goes a captured graph with times; out comes a `PlanReport`. Nothing of the model runs here.
"""

from legroom.plan._allocate import Adjustable
from legroom.plan._budget import Budget, parse_activations, parse_budget
from legroom.plan._callable import plan, stage_of
from legroom.plan._executor_time import (
    ExecutorLoad,
    ExecutorTime,
    calibrate_by,
    executor_time,
)
from legroom.plan._options import (
    PlanOptions,
    allowed_ways,
    choose_ways,
    faults_of,
    faults_of_ways,
    report_faults,
)
from legroom.plan._plan import (
    Decision,
    FrontierPoint,
    LiveTensor,
    Plan,
    PlanReport,
    PresetPoint,
    SweepPoint,
)
from legroom.plan._planner import Planner, simulate_plain
from legroom.plan._problem import Place, Problem
from legroom.plan._program import Instruction, PieceProgram, Transfer
from legroom.plan._report import OnProgress, build_report, planner_of, with_times
from legroom.plan._reserve import Form, Judge, forms_of, plan_with_reserve
from legroom.plan._scripted import plan_script
from legroom.plan._sweep import find_largest, largest_that_fits
from legroom.plan._whole_step import (
    CapturedKind,
    UnknownRunError,
    WholeStep,
    compose,
    count_operations,
    simulate_choice,
)

__all__ = [
    "Adjustable",
    "Budget",
    "CapturedKind",
    "Decision",
    "ExecutorLoad",
    "ExecutorTime",
    "Form",
    "FrontierPoint",
    "Instruction",
    "Judge",
    "LiveTensor",
    "OnProgress",
    "PieceProgram",
    "Place",
    "Plan",
    "PlanOptions",
    "PlanReport",
    "Planner",
    "PresetPoint",
    "Problem",
    "SweepPoint",
    "Transfer",
    "UnknownRunError",
    "WholeStep",
    "allowed_ways",
    "build_report",
    "calibrate_by",
    "choose_ways",
    "compose",
    "count_operations",
    "executor_time",
    "faults_of",
    "faults_of_ways",
    "find_largest",
    "forms_of",
    "largest_that_fits",
    "parse_activations",
    "parse_budget",
    "plan",
    "plan_script",
    "plan_with_reserve",
    "planner_of",
    "report_faults",
    "simulate_choice",
    "simulate_plain",
    "stage_of",
    "with_times",
]
