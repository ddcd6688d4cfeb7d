"""Solvers: each proposes choices within a budget, and the simulator judges them."""

from __future__ import annotations

from legroom.plan.solvers._brute_force import BruteForce
from legroom.plan.solvers._greedy import Greedy
from legroom.plan.solvers._milp import Milp, approach, rounded
from legroom.plan.solvers._solver import AbstractSolver, Verdict
from legroom.registry import Registry

__all__ = [
    "AbstractSolver",
    "BruteForce",
    "Greedy",
    "Milp",
    "Verdict",
    "approach",
    "get",
    "names",
    "rounded",
]

_SOLVERS: Registry[type[AbstractSolver]] = Registry(
    "solver",
    (
        Greedy,
        Milp,
        BruteForce,
    ),
)
names, get = _SOLVERS.names, _SOLVERS.get
