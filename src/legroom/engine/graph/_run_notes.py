"""Notes of which planned piece runs when, while somebody measures the step.

In come the runs of pieces, forward and backward; out go scopes in the profiler's event stream, and
a `RunNote` for each. While nobody measures, nothing is noted.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch

from legroom.capture import ObservedRun, PieceCode
from legroom.meter import Port, RunNote, Tag, open_scope

_NODE = "CompiledFunctionBackward"
_DEEPEST = 4
"""Views between what AOTAutograd returns and what its caller gets."""

new_kind_number: Callable[[], int] = itertools.count().__next__
"""A number for a kind of call, different from all others of this process."""


@final
@dataclass
class PieceIdentity:
    """Which piece a graph of TorchDynamo's became, and what it returns.

    Attributes:
        piece: -1 where it is none that was planned.
        returned: By forward.
        gradients: By backward.
    """

    kind: int
    piece: int = -1
    returned: tuple[Port, ...] = ()
    gradients: tuple[Port, ...] = ()

    def learn(self, code: PieceCode, piece: int) -> None:
        """Note what the piece returns."""
        self.piece = piece
        given = {each.index for each in code.storages if each.is_given}
        sizes = {each.index: each.num_bytes for each in code.storages}
        returned = {each.storage for each in code.forward_outputs if each is not None}
        gradients = {each.storage for each in code.backward_outputs if each is not None}
        self.returned = tuple(
            (op.node, place, sizes[storage])
            for op in code.forward
            for place, storage in enumerate(op.writes)
            if storage in returned - given
        )
        self.gradients = tuple(
            (op.node, place, sizes[storage])
            for op in code.backward
            for place, storage in enumerate(op.writes)
            if storage in gradients - given
        )


class Notebook:
    """Takes notes from `begin` to `end`; of one thread, as the profiler does.

    Attributes:
        notes: In the order in which runs began; None while nobody measures.
    """

    def __init__(self) -> None:
        self.notes: list[RunNote] | None = None
        self._num_calls = 0
        self._run_of_node: dict[int, ObservedRun] = {}
        self._latest_of_piece: dict[int, list[ObservedRun]] = {}

    def begin(self) -> None:
        """Take notes from here on."""
        self.notes = []
        self._num_calls = 0

    def end(self) -> list[RunNote]:
        """Take no more; those that were taken."""
        notes, self.notes = self.notes, None
        self._run_of_node.clear()
        self._latest_of_piece.clear()
        return notes or []

    def call_begins(self) -> None:
        """What runs forward from here on is of another call."""
        self._num_calls += 1

    @contextlib.contextmanager
    def _noted(self, note: RunNote) -> Iterator[None]:
        assert self.notes is not None, "bug in legroom: a note without a notebook"
        self.notes.append(note)
        with open_scope(Tag.PIECE, len(self.notes) - 1):
            yield

    def forward(self, identity: PieceIdentity, run: Callable[..., Any], args: Any) -> Any:
        """Run a piece's forward."""
        if self.notes is None:
            return run(*args)
        number = len(self.notes)
        about = ObservedRun(
            identity.kind, self._num_calls, identity.piece, number, is_backward=False
        )
        note = RunNote(about, identity.returned)
        with self._noted(note):
            outputs = run(*args)
        tensors = [each for each in outputs if isinstance(each, torch.Tensor)]
        note.addresses = tuple(each.untyped_storage().data_ptr() for each in tensors)
        nodes = {_sequence_of(each.grad_fn) for each in tensors if each.grad_fn is not None}
        for node in nodes - {None}:
            self._run_of_node[node or 0] = about
        self._latest_of_piece.setdefault(id(identity), []).append(about)
        return outputs

    def backward(self, identity: PieceIdentity, run: Callable[..., Any]) -> Callable[..., Any]:
        """What to run as a piece's backward."""

        def noted(args: list[Any]) -> Any:
            if self.notes is None:
                return run(args)
            about = self._forward_of(identity)
            if about is None:  # its forward ran before anybody measured
                return run(args)
            back = ObservedRun(about.kind, about.call, about.piece, about.number, is_backward=True)
            with self._noted(RunNote(back, identity.gradients)):
                return run(args)

        noted._boxed_call = True  # type: ignore[attr-defined]
        return noted

    def _forward_of(self, identity: PieceIdentity) -> ObservedRun | None:
        node = torch._C._current_autograd_node()
        known = self._run_of_node.get(node._sequence_nr()) if node is not None else None
        if known is not None:
            return known
        latest = self._latest_of_piece.get(id(identity))
        return latest.pop() if latest else None


notebook = Notebook()


def _sequence_of(node: Any) -> int | None:
    """The number of the piece's autograd node behind what it returned."""
    for _ in range(_DEEPEST):
        if node is None:
            return None
        if _NODE in node.name():
            number: int = node._sequence_nr()
            return number
        node = next((parent for parent, _ in node.next_functions if parent is not None), None)
    return None
