"""HiGHS behind one function: rows and costs go in, values and a bound come out.

The only module that imports `highspy` and NumPy. Runs on one thread from a fixed seed, so that the
same programme gives the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import highspy
import numpy as np

_TO_THE_END = (
    highspy.HighsModelStatus.kOptimal,
    highspy.HighsModelStatus.kInfeasible,
    highspy.HighsModelStatus.kUnboundedOrInfeasible,
    highspy.HighsModelStatus.kModelEmpty,
)
_FEASIBLE = 2
"""HiGHS's word for a solution that keeps every row."""
_ITERATION_WORK = 5_000_000_000
"""Iterations of the simplex method, times rows: some ten seconds."""
_MOST_ITERATIONS = 2**31 - 1
_STEADY_GAP = 1e-6
_SCALE_BYTES = float(1 << 20)
"""Memory rows are in MiB: HiGHS's tolerances are absolute."""


@final
@dataclass(frozen=True)
class Solved:
    """What HiGHS found.

    Attributes:
        values: Of the variables; none where nothing was found before it stopped.
        bound: Proven bound on the objective: added ms, or bytes where the peak is minimised.
        stopped_early: Whether a limit was reached, of time or of work.
    """

    values: Sequence[float]
    objective: float
    bound: float
    stopped_early: bool


def solve_programme(  # noqa: PLR0913 - a programme, and when to stop
    *,
    costs: Sequence[float],
    is_integer: Sequence[bool] | None,
    rows: Sequence[tuple[float, float, dict[int, float]]],
    memory_rows: Sequence[tuple[int, float]],
    budget_bytes: int | None,
    time_limit_s: float,
    most_nodes: int | None = None,
    close_enough: float = 0.0,
) -> Solved | None:
    """Minimise the costs within the budget, or the budget itself where none is given.

    None where nothing keeps all rows.

    Args:
        time_limit_s: May be infinite: the number of iterations is bounded as well.
        most_nodes: Of branch and bound; None: as many as it takes.
        close_enough: How far from the optimum an integer solution may be.
        memory_rows: Rows that are bytes, with the fixed bytes on top: row + fixed <= budget.
    """
    programme = _programme(costs, rows, memory_rows, budget_bytes)
    if is_integer is not None:
        kinds = [
            highspy.HighsVarType.kInteger if whole else highspy.HighsVarType.kContinuous
            for whole in is_integer
        ]
        if budget_bytes is None:
            kinds.append(highspy.HighsVarType.kContinuous)
        programme.integrality_ = kinds
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in (
        ("output_flag", False),
        ("threads", 1),
        ("random_seed", 0),
        ("time_limit", float(time_limit_s)),
        ("simplex_iteration_limit", min(_MOST_ITERATIONS, _ITERATION_WORK // max(1, len(rows)))),
        ("mip_rel_gap", 1e-4),
        ("mip_abs_gap", max(_STEADY_GAP, close_enough)),
        ("mip_feasibility_tolerance", 1e-7),
        *(() if most_nodes is None else (("mip_max_nodes", most_nodes),)),
    ):
        solver.setOptionValue(option, value)
    solver.passModel(programme)
    solver.run()
    status = solver.getModelStatus()
    information = solver.getInfo()
    stopped_early = status not in _TO_THE_END
    scale = _SCALE_BYTES if budget_bytes is None else 1.0
    objective = information.objective_function_value * scale
    bound = information.mip_dual_bound * scale if is_integer is not None else objective
    if stopped_early and (is_integer is None or not math.isfinite(bound)):
        bound = 0.0
    if information.primal_solution_status != _FEASIBLE:
        return Solved((), objective, max(bound, 0.0), stopped_early) if stopped_early else None
    return Solved(list(solver.getSolution().col_value), objective, max(bound, 0.0), stopped_early)


def _programme(
    costs: Sequence[float],
    rows: Sequence[tuple[float, float, dict[int, float]]],
    memory_rows: Sequence[tuple[int, float]],
    budget_bytes: int | None,
) -> highspy.HighsLp:
    fixed = dict(memory_rows)
    minimises_peak = budget_bytes is None
    num_columns = len(costs) + minimises_peak
    lower: list[float] = []
    upper: list[float] = []
    starts, indices = [0], list[int]()
    values: list[float] = []
    for number, (low, high, expression) in enumerate(rows):
        is_memory = number in fixed
        scale = 1.0 / _SCALE_BYTES if is_memory else 1.0
        top_of_row = ((budget_bytes or 0) - fixed[number]) * scale if is_memory else high
        indices.extend(expression)
        values.extend(value * scale for value in expression.values())
        if is_memory and minimises_peak:
            indices.append(num_columns - 1)
            values.append(-1.0)
        starts.append(len(indices))
        lower.append(low)
        upper.append(top_of_row)
    programme = highspy.HighsLp()
    programme.num_col_, programme.num_row_ = num_columns, len(rows)
    programme.col_lower_ = np.zeros(num_columns)
    top = np.ones(num_columns)
    objective = np.array([*costs, 1.0] if minimises_peak else costs, dtype=float)
    if minimises_peak:
        objective[:-1] = 0.0
        top[-1] = highspy.kHighsInf
    programme.col_upper_, programme.col_cost_ = top, objective
    programme.row_lower_ = np.array(lower, dtype=float)
    programme.row_upper_ = np.array(upper, dtype=float)
    programme.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    programme.a_matrix_.start_ = np.array(starts, dtype=np.int32)
    programme.a_matrix_.index_ = np.array(indices, dtype=np.int32)
    programme.a_matrix_.value_ = np.array(values, dtype=float)
    return programme
