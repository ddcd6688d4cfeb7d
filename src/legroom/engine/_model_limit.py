"""The process limit of `legroom run --limit`: the size before the model, plus the budget.

In goes the budget; it waits for the first module that the script makes, and limits the process as
soon as the budget is known in bytes. See Note [Model limit].
"""

# Note [Model limit]
# 1. The size before the model is that when the first module is made outside of imports: libraries
#    make modules of their own while they are imported.
# 2. What legroom itself needs is inside the limit: graphs, compiled code, recorded events. Plans
#    are therefore made for less than the budget: what the process has grown by beside tensors while
#    planning, and as much again and some more, which compiling and measuring take. On GPT-2 with 6
#    layers, planning takes 45 to 70 MiB, and all together 150. Where so much less is below the
#    floor, the floor is taken.

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, final

from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from legroom.capture import scan_heap
from legroom.engine._fit import Fitted
from legroom.engine._limit import data_bytes, limit_process
from legroom.errors import InfeasibleBudgetError, ScriptError, UsageError
from legroom.plan import PlanOptions
from legroom.units import format_bytes

_GROWTH = 2.0
_USUAL_ROOM_BYTES, _LEAST_ROOM_BYTES = 96 * 2**20, 32 * 2**20


@final
class ModelLimit:
    """The process limit: its size before the model, plus the budget as soon as that is known."""

    def __init__(self, options: PlanOptions) -> None:
        budget = options.chosen_budget
        self._known_bytes = None if budget is None else budget.num_bytes
        self._before_bytes = 0
        self._applied = contextlib.ExitStack()
        self._is_applied = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Wait for the first module that is made, outside of imports."""
        self._before_bytes = _checked_data_bytes()
        module_class: Any = nn.Module
        original = module_class.__init__

        def init(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            if module_class.__init__ is init and not _is_importing():
                module_class.__init__ = original
                self._model_begins()
            original(module, *args, **kwargs)

        module_class.__init__ = init
        try:
            with self._applied:
                yield
        finally:
            if module_class.__init__ is init:
                module_class.__init__ = original

    def apply(self, budget_bytes: int) -> None:
        """Limit the process, unless it is limited already."""
        if self._is_applied:
            return
        room_bytes = self._before_bytes + budget_bytes - _checked_data_bytes()
        if room_bytes <= 0:
            raise ScriptError(
                "the process is above its size before the model plus the budget as the limit is "
                "about to be set: planning itself took the rest.\n"
                "  try: --budget in bytes, which limits from the start; or a larger budget"
            )
        self._is_applied = True
        self._applied.enter_context(limit_process(room_bytes))

    def make_room(self, fitted: Fitted) -> None:
        """Plan again with what the process itself takes kept free; see Note [Model limit], rule 2.

        Once for each plan: having planned again is told like any other plan.

        Raises:
            InfeasibleError: No plan fits what is left.
        """
        if fitted.reserved_bytes >= _LEAST_ROOM_BYTES:
            return
        grown_bytes = max(0, _checked_data_bytes() - self._before_bytes - _tensor_bytes())
        budget_bytes = fitted.report().budget_bytes
        room_bytes = int(_GROWTH * grown_bytes) + _USUAL_ROOM_BYTES
        try:
            fitted.reserve(room_bytes)
        except InfeasibleBudgetError as error:
            most_bytes = budget_bytes - error.floor_bytes
            if most_bytes < grown_bytes + _LEAST_ROOM_BYTES:
                raise _of_whole_limit(error, budget_bytes, room_bytes) from None
            fitted.reserve(most_bytes)

    def lift(self) -> None:
        """Limit no more."""
        self._applied.close()

    def _model_begins(self) -> None:
        self._before_bytes = _checked_data_bytes()
        if self._known_bytes is not None:
            self.apply(self._known_bytes)


def _of_whole_limit(
    error: InfeasibleBudgetError, budget_bytes: int, room_bytes: int
) -> InfeasibleBudgetError:
    """The error in terms of the whole limit, of which so much is the process's own."""
    room_above_floor = room_bytes + error.enough_bytes - error.floor_bytes
    whole = error.with_room(room_above_floor, budget_bytes=budget_bytes)
    whole.args = (
        f"with {format_bytes(room_bytes)} of the budget kept free for the process itself, because "
        f"it is limited: {whole}",
    )
    return whole


def _checked_data_bytes() -> int:
    present_bytes = data_bytes()
    if present_bytes is None:
        raise UsageError("--limit needs Linux's /proc/self/status; leave it out on this system")
    return present_bytes


def _is_importing() -> bool:
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _tensor_bytes() -> int:
    """What is alive of tensors that Python knows."""
    storages: dict[int, int] = {}
    for tensor in scan_heap().tensors:
        if isinstance(tensor, FakeTensor):
            continue
        with contextlib.suppress(RuntimeError, NotImplementedError):
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
