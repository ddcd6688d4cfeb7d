"""The contest: every peer and legroom on the same cases, each in a process of its own.

`worker` is that process, `Worker` the parent's end of it; a heat is a group whose steps are timed
in turns; `judge` says who won. The rules are in `benchmarks/README.md`.
"""

from benchmarks.contest._contest import ContestOptions, measure_case, measure_heats
from benchmarks.contest._heats import Entry, Heat, draw
from benchmarks.contest._judge import Verdict, interval, judge
from benchmarks.contest._process import Worker
from benchmarks.contest._race import Row, run_heat

__all__ = [
    "ContestOptions",
    "Entry",
    "Heat",
    "Row",
    "Verdict",
    "Worker",
    "draw",
    "interval",
    "judge",
    "measure_case",
    "measure_heats",
    "run_heat",
]
