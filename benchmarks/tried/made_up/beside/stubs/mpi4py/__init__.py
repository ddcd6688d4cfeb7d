"""Stands in for mpi4py: one process that talks to nobody."""

from __future__ import annotations

from typing import Any


class _World:
    """The communicator of one process."""

    rank = 0
    size = 1

    def Get_rank(self) -> int:  # noqa: N802
        """Always the first."""
        return self.rank

    def Get_size(self) -> int:  # noqa: N802
        """Always alone."""
        return self.size

    def bcast(self, value: Any, root: int = 0) -> Any:
        """What was sent."""
        return value

    def gather(self, value: Any, root: int = 0) -> list[Any]:
        """What was given, as a list."""
        return [value]


class MPI:
    """The module of that name."""

    COMM_WORLD = _World()
