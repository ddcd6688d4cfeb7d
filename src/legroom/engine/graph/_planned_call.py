"""A call under one plan: TorchDynamo's graphs, split as the plan says, in place of the call.

In go a callable, the sources that capture saw and the programs of their pieces; out comes the
callable that runs the programs. The executor decides what runs each half.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from torch import fx

from legroom.capture import (
    PieceCode,
    Rewrite,
    SourceInfo,
    captured,
    dynamo_settings,
    fake_rules,
    prepared,
    read_joint_graph,
    rnn_forwards,
    same_answers_as_eager,
    source_key,
    trace_joint,
)
from legroom.engine.graph._executors import Executor
from legroom.engine.graph._gradients import Delivery, guard, refusing
from legroom.engine.graph._run_notes import PieceIdentity, notebook
from legroom.engine.graph._split import PieceProbe, PieceWitness, split
from legroom.plan import Instruction, PieceProgram, Place

Probe = Callable[[int, str, int, Any], Any]


@final
@dataclass(frozen=True, slots=True)
class Witness:
    """Is shown what forward makes.

    Attributes:
        places: Of what it wants to see: piece, node, and place among what that writes.
        see: Is called with the place and the tensor.
    """

    places: frozenset[Place]
    see: Callable[[Place, Any], None]


class PlannedCall:
    """Calls a function with its pieces carried out as planned.

    Args:
        probe: Is called with the place of each tensor that is decoded (its piece, node, and place
            among what that writes) and the tensor, and says what to use instead.
        witness: Is shown what forward makes.
        kind: Number of the kind of call, for whoever measures.
        keeps_unknown: Whether graphs without a program run through the executor all the same, as
            plain PyTorch would run them.

    Attributes:
        unplanned: Graphs that the plan did not know, and why: they keep everything.
        num_pieces: Pieces that run as planned.
    """

    def __init__(  # noqa: PLR0913 - what a call depends on
        self,
        function: Callable[..., Any],
        sources: tuple[SourceInfo, ...],
        programs: Mapping[int, PieceProgram],
        *,
        executor: Executor,
        exactness: str,
        rewrites: tuple[Rewrite, ...] = (),
        probe: Probe | None = None,
        witness: Witness | None = None,
        kind: int = -1,
        keeps_unknown: bool = False,
    ) -> None:
        self.kind = kind
        self._keeps_unknown = keeps_unknown
        self.unplanned: list[str] = []
        self.num_pieces = 0
        self._sources = {source.key: source for source in sources}
        self._by_outline = {source.outline: source for source in sources if source.piece >= 0}
        self._programs = dict(programs)
        self._pieces: list[_Piece] = []
        self._executor = executor
        self._exactness = exactness
        self._rewrites = rewrites
        self._probe = probe
        self._witness = witness
        self._compiled = captured(function, self._backend, _compiling)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the call."""
        notebook.call_begins()
        with same_answers_as_eager(), rnn_forwards(self._exactness):
            return self._compiled(*args, **kwargs)

    def _backend(self, graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        source = self._sources.get(source_key(graph, inputs))
        if source is not None and source.piece < 0:
            return graph
        unused = source.unused_outputs if source is not None else frozenset()
        delivery, num_unplanned = Delivery(), len(self.unplanned)
        identity = PieceIdentity(self.kind)
        executor = self._executor

        # AOTAutograd keeps it as long as the program runs: this call, and so the model, must not be
        # behind it.
        def make_backward(graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
            return notebook.backward(identity, executor.compile(graph, inputs))

        rewritten, _, _ = prepared(graph, detached=unused, rewrites=self._rewrites)
        piece = trace_joint(
            rewritten,
            tuple(inputs),
            partition=functools.partial(self._partition, identity, delivery, len(inputs)),
            make_forward=executor.compile,
            make_backward=make_backward,
            make_inference=executor.compile,
        )
        if len(self.unplanned) > num_unplanned and not self._keeps_unknown:
            # As eager: a joint graph gives zeros to outputs that get no gradient, and adds them up.
            return graph
        made = _Piece(piece, identity, delivery, unused)
        self._pieces.append(made)
        return made.run

    def forget(self) -> None:
        """Let go of everything that was compiled: TorchDynamo leaves it in the program's globals.

        What was called before can still run backward.
        """
        for piece in self._pieces:
            piece.forget()

    def _partition(
        self,
        identity: PieceIdentity,
        delivery: Delivery,
        num_inputs: int,
        joint: fx.GraphModule,
        joint_inputs: Any,
        *,
        num_fwd_outputs: int,
        **rest: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        code = read_joint_graph(joint, num_fwd_outputs, module_path=lambda key: None, root="")
        source = self._by_outline.get(code.outline)
        program = self._programs.get(source.piece) if source is not None else None
        if program is None:
            self.unplanned.append(f"a graph of {len(code.forward)} operations that was not planned")
            program = keep_everything(code)
        else:
            self.num_pieces += 1
        # With inputs that alias, AOTAutograd counts them otherwise: nothing is delivered.
        is_counted = num_inputs == len(code.primals) and self._executor.can_deliver
        piece = source.piece if source is not None else -1
        identity.learn(code, piece)
        return split(
            joint,
            code,
            program,
            num_forward_outputs=num_fwd_outputs,
            deliver=delivery.deliver if is_counted else None,
            probe=_probe_of(self._probe, piece),
            witness=_witness_of(self._witness, piece),
        )


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    with dynamo_settings(), fake_rules():
        yield


def _probe_of(probe: Probe | None, piece: int) -> PieceProbe | None:
    if probe is None:
        return None
    whole = probe

    def probed(node: str, place: int, value: Any) -> Any:  # fx wants something with a name
        return whole(piece, node, place, value)

    return probed


def _witness_of(witness: Witness | None, piece: int) -> PieceWitness | None:
    if witness is None:
        return None
    see = witness.see

    def seen(node: str, place: int, value: Any) -> None:
        see((piece, node, place), value)

    places = frozenset((node, place) for number, node, place in witness.places if number == piece)
    return PieceWitness(places, seen)


def keep_everything(code: PieceCode) -> PieceProgram:
    """The program of a piece for which there is none: as plain PyTorch does."""
    backward = tuple(Instruction(operation.node) for operation in code.backward)
    return PieceProgram(backward, dropped=frozenset())


class _Piece:
    """One graph of TorchDynamo's, as planned."""

    def __init__(
        self,
        call: Callable[..., Any],
        identity: PieceIdentity,
        delivery: Delivery,
        unused: frozenset[int],
    ) -> None:
        self._call = call
        self._identity = identity
        self._delivery = delivery
        self._unused = unused

    def run(self, *args: Any) -> Any:
        """Run forward; backward is autograd's to call."""
        guard.has_pieces = True
        self._delivery.note_inputs(args)
        return refusing(notebook.forward(self._identity, self._call, args), self._unused)

    def forget(self) -> None:
        """Let go of what was compiled."""
        self._call = None  # type: ignore[assignment]
