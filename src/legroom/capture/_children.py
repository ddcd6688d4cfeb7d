"""Processes that a program starts: legroom does not follow into most of them, and says so.

In goes a running program; out comes how many processes it has started to run which function, and
the sentence for a user whose script did not train here.
"""

# Note [Children]
# 1. A child that is spawned begins with an empty interpreter: nothing of legroom is there. One that
#    is forked has everything that this process had, legroom at work included; what is planned there
#    is said there.
# 2. Workers of a DataLoader and servers of managers are not counted: they train nothing.

from __future__ import annotations

import contextlib
import functools
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any, final

_HELPERS = ("torch.utils.data.", "multiprocessing.managers", "multiprocessing.resource")


@final
class Children:
    """Counts the processes that a program starts through `multiprocessing`; see Note [Children].

    Attributes:
        started: How many, by what they run; spawned ones.
        forked: The same of forked ones.
    """

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        self.forked: Counter[str] = Counter()

    @contextlib.contextmanager
    def noticed(self) -> Iterator[None]:
        """Notice those that are started while the context is open."""
        process_class: Any = BaseProcess
        original = process_class.start

        @functools.wraps(original)
        def start(process: Any) -> None:
            counted = self._counted(process)  # starting it makes it forget
            original(process)
            if counted is not None:
                counts, name = counted
                counts[name] += 1

        process_class.start = start
        try:
            yield
        finally:
            process_class.start = original

    def explanation(self, target: str, command: str, *, without: str) -> str | None:
        """What to say of a script that did not train here; None if it started no process.

        Args:
            target: The script.
            command: `"run"`, as the user would type it.
            without: What that means for what is trained there: `"has no budget"`.
        """
        started = self.started or self.forked
        if not started:
            return None
        names, count = ", ".join(started), sum(started.values())
        processes = "a process" if count == 1 else f"{count} processes"
        if self.started or command != "run":
            they = f"legroom does not follow there: what they train {without}"
        else:
            they = (
                "in each of them the whole budget holds, and what was planned there is said above"
            )
        first = next(iter(started))
        if command == "run":
            remedy = (
                f"`legroom.fit(model, budget=…)` in {first}; or let torchrun start the processes, "
                f"and not the script: `torchrun --nproc-per-node {count} -m legroom run … {target}`"
            )
        else:
            remedy = f"a script that calls {first} in its own process"
        return (
            f"{target} ran no backward pass in this process, but started {processes} to run "
            f"{names}; {they}.\n  try: {remedy}"
        )

    def _counted(self, process: Any) -> tuple[Counter[str], str] | None:
        """Where it counts, and as what; None if it does not."""
        function = getattr(process, "_target", None)
        if (getattr(function, "__module__", None) or "").startswith(_HELPERS):
            return None
        method = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
        return self.forked if method == "fork" else self.started, _name_of(process, function)


def _name_of(process: Any, function: Any) -> str:
    """What it runs: the user's function, where `torch.multiprocessing.spawn` wraps it."""
    if getattr(function, "__module__", None) == "torch.multiprocessing.spawn":
        function = next(iter(getattr(process, "_args", ())), function)
    name = getattr(function, "__name__", None)
    return str(name or type(process).__name__)
