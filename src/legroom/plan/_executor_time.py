"""What legroom's own executor takes beside the operations that it runs.

In go what was measured once on this machine and how much a step runs through the executor; out come
milliseconds. See Note [Executor time].
"""

# Note [Executor time]
# 1. A planned call runs Python code that calls one operation after the other, inside TorchDynamo's
#    and AOTAutograd's wrappers; plain PyTorch has modules around its operations, and backward in
#    C++. The difference is some microseconds for each run of a piece and for each operation. In a
#    step of large tensors nobody sees it; a small step it makes longer by half.
# 2. It is the same for every plan of a step, so the search for plans knows nothing of it. It counts
#    where a plan is compared with the step as it is, which has none.
# 3. What is measured is the eager executor on a CPU. A compiled one, an accelerator (whose kernels
#    run while Python goes on) and a described device count for nothing.
# 4. Where the captured step's own operations take longer than those of plain PyTorch (fused ones,
#    where tensors are small; dropout taken apart), that is counted too: no plan is without it.
#    Where they take less, that is not taken off: not all of it is gained in a step.
# 5. The engine measures, and is above this package: it says how when it is imported.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from legroom.capture import Graph


@final
@dataclass(frozen=True, slots=True)
class ExecutorLoad:
    """How much of a step goes through the executor.

    Attributes:
        num_runs: Runs of pieces, each forward and backward.
        num_operations: Operations of all of them; what a plan runs again is not among them.
    """

    num_runs: int = 0
    num_operations: int = 0

    @classmethod
    def of(cls, graph: Graph) -> ExecutorLoad:
        """That of a captured step."""
        planned = [(op.piece, op.call) for op in graph.operations if op.piece >= 0]
        return cls(len(set(planned)), len(planned))


@final
@dataclass(frozen=True, slots=True)
class ExecutorTime:
    """What the executor takes beyond plain PyTorch, on this machine.

    Attributes:
        run_ms: For each run of a piece, forward and backward.
        operation_ms: For each operation.
    """

    run_ms: float = 0.0
    operation_ms: float = 0.0

    def of(self, load: ExecutorLoad) -> float:
        """Milliseconds for so much."""
        return self.run_ms * load.num_runs + self.operation_ms * load.num_operations


Calibration = Callable[[], ExecutorTime]
_calibrations: list[Calibration] = []


def calibrate_by(function: Calibration) -> Calibration:
    """Let the executor's time be measured by this function; see Note [Executor time], rule 5."""
    _calibrations[:] = [function]
    return function


def executor_time(device: str, *, is_compiled: bool) -> ExecutorTime:
    """What the executor takes; nothing where that is not known, see Note [Executor time], rule 3.

    Cost: about a second for the first time on a machine; afterwards it is read from the cache.
    """
    if is_compiled or device != "cpu" or not _calibrations:
        return ExecutorTime()
    return _calibrations[0]()
