"""How much gradients suffer from each tensor that a plan holds with an error.

In goes what a plan holds so, and something that measures the error of its gradients; out comes a
number for each tensor, by which the planner allocates bits. See Note [Sensitivity].
"""

# Note [Sensitivity]
# 1. The plan runs as it is, but with everything that it holds with an error in a fine form; then
#    once more for each tensor, with that one in its coarsest form on its way back. What the square
#    of the gradients' error grows by is that tensor's share.
# 2. Each such run is a step. Of many tensors, neighbours of the same size are measured together: of
#    so many that all runs together take `_MEASURING_S`, though never fewer than a few runs.
# 3. What is too little to be measured counts a little: a byte is better spent there than nowhere.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import final

import torch

from legroom import ways
from legroom.plan import Adjustable, PieceProgram, Place

_FEWEST_RUNS, _MOST_RUNS = 6, 32
_MEASURING_S = 90.0
_FINE = 0.02
"""An error so small is fine, and the fewest bytes that have it are taken."""
_LEAST = 1e-3
"""Of the mean sensitivity."""


@final
class CoarseningProbe:
    """Makes chosen tensors coarser on their way back.

    Attributes:
        chosen: Where they are.
    """

    def __init__(self, adjustables: Sequence[Adjustable]) -> None:
        self.chosen: frozenset[Place] = frozenset()
        self._forms = {each.place: each.forms[0] for each in adjustables}

    def __call__(self, piece: int, node: str, place: int, value: torch.Tensor) -> torch.Tensor:
        """What to use instead of a tensor that was decoded."""
        if (piece, node, place) not in self.chosen:
            return value
        way = _encoding(self._forms[piece, node, place])
        held = way.put(value)
        decoded: torch.Tensor = way.get(held, list(value.shape), list(value.stride()), value.dtype)
        return decoded


def in_fine_form(
    programs: Mapping[int, PieceProgram], adjustables: Sequence[Adjustable]
) -> dict[int, PieceProgram]:
    """The same programs with little error."""
    finer = {each.place: _fine_form(each.forms) for each in adjustables}
    return {
        piece: replace(
            program,
            encoded=tuple(
                replace(each, way=finer.get((piece, each.node, each.place), each.way))
                for each in program.encoded
            ),
        )
        for piece, program in programs.items()
    }


def measure_sensitivity(
    adjustables: Sequence[Adjustable],
    probe: CoarseningProbe,
    error: Callable[[], float],
    on_progress: Callable[[int, int], None],
    *,
    run_s: float = 0.0,
) -> dict[Place, float]:
    """For each tensor the gradients' squared error over its own; see Note [Sensitivity].

    Args:
        error: Runs a step with the probe as it is set; the relative error of its gradients.
        on_progress: Is told how many runs are done, and how many there are.
        run_s: How long such a run takes, about.
    """
    groups = list(_groups(adjustables, run_s))
    unavoidable = error() ** 2
    shares: dict[Place, float] = {}
    for number, group in enumerate(groups):
        on_progress(number, len(groups))
        probe.chosen = frozenset(each.place for each in group)
        grown = max(0.0, error() ** 2 - unavoidable)
        own = sum(_encoding(each.forms[0]).error ** 2 for each in group)
        shares.update({each.place: grown / own for each in group})
    probe.chosen = frozenset()
    on_progress(len(groups), len(groups))
    least = _LEAST * sum(shares.values()) / len(shares)
    return {place: max(share, least) for place, share in shares.items()}


def _groups(adjustables: Sequence[Adjustable], run_s: float) -> Iterator[Sequence[Adjustable]]:
    """See Note [Sensitivity], rule 2."""
    most_runs = int(_MEASURING_S / run_s) if run_s > 0 else _MOST_RUNS
    most_runs = min(_MOST_RUNS, max(_FEWEST_RUNS, most_runs))
    alike = sorted(adjustables, key=lambda each: each.num_bytes)
    length = -(-len(alike) // most_runs)
    yield from (alike[first : first + length] for first in range(0, len(alike), length))


def _encoding(name: str) -> type[ways.AbstractEncoding]:
    way = ways.get(name)
    assert issubclass(way, ways.AbstractEncoding), "bug in legroom: a form that is no encoding"
    return way


def _fine_form(forms: Sequence[str]) -> str:
    return next((name for name in forms if ways.get(name).error <= _FINE), forms[-1])
