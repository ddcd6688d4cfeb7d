"""Splits a joint graph in two by a program: a forward that keeps, a backward that gives back.

In go the joint graph of a piece and its `PieceProgram`; out come two graph modules as AOTAutograd
wants them from a partitioner. See Note [Split].
"""

# Note [Split]
# 1. Backward is written down in the program's order. A value is looked for when something reads
#    it: what forward keeps becomes an input, what the program reran is there, and views are made
#    anew from what they look at, since they cost nothing.
# 2. fx releases every value after its last use. So a rerun right before its first reader, and an
#    input that is read once, live exactly as long as the simulator says.
# 3. An operation with several outputs has them taken apart at once: its tuple would keep them all.
# 4. A random operation that is rerun draws the same numbers: forward keeps the generator's state
#    from before it. A batch norm is rerun without its running statistics.
# 5. Gradients are delivered where they are made, see Note [Delivery], but not while something
#    still reads the parameter: an optimizer that waits for the gradient writes into it.
# 6. What forward writes into at its end and backward wants to read as it was before is copied
#    first.
# 7. What is held in another form is encoded right after the last operation of forward that reads
#    it, and decoded where the program says. A view at the end, for something that forward returns,
#    reads nothing: it is not waited for.
# 8. What is held elsewhere is handed over there as well, encoded or as it is. What stands for it is
#    a ticket, and every operation on that returns another one: so their order is the graph's. What
#    forward returns has left by its end: whoever gets it may change it.

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import fx

from legroom import variants, ways
from legroom.capture import PieceCode, is_tangent, unread_places
from legroom.engine.graph._random import random_state, run_with_state
from legroom.errors import LegroomError
from legroom.plan import PieceProgram, Transfer

_WITHOUT_STATISTICS = torch.ops.aten._native_batch_norm_legit.no_stats
_BATCH_NORMS = (
    torch.ops.aten._native_batch_norm_legit_functional.default,
    torch.ops.aten._native_batch_norm_legit.default,
    torch.ops.aten.native_batch_norm.default,
)


Deliver = Callable[[int, Any], Any]
PieceProbe = Callable[[str, int, Any], Any]


@final
@dataclass(frozen=True, slots=True)
class PieceWitness:
    """Is shown what forward makes.

    Attributes:
        places: Nodes, and places among what they write, of what it wants to see.
        see: Is called with both and the tensor.
    """

    places: frozenset[tuple[str, int]]
    see: Callable[[str, int, Any], None]


class MismatchError(LegroomError):
    """A program does not belong to the graph: it names what is not there."""


def split(
    joint: fx.GraphModule,
    code: PieceCode,
    program: PieceProgram,
    *,
    num_forward_outputs: int,
    deliver: Deliver | None = None,
    probe: PieceProbe | None = None,
    witness: PieceWitness | None = None,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward of a piece; see Note [Split].

    Args:
        deliver: Is called with the place of an input and its gradient as soon as that is made, and
            says what to hand on instead.
        probe: Is called with a node, a place among what that writes, and what was decoded of it,
            and says what to use instead.
        witness: Is shown what forward makes.

    Raises:
        MismatchError: The program was made for another graph.
    """
    return _Splitter(joint, code, program, num_forward_outputs, deliver, probe, witness).split()


@dataclass(frozen=True, slots=True)
class _Form:
    """How a tensor is held that forward does not keep as it is.

    Attributes:
        way: The encoding; None: the tensor itself is moved.
        about: What the encoding is told beside the tensor.
        move: What moves it; None: it stays on the device.
        settled_before, label: See `Encoded`.
    """

    way: type[ways.AbstractEncoding] | None
    about: tuple[Any, ...]
    move: type[ways.AbstractMove] | None
    settled_before: str | None
    label: str

    @property
    def name(self) -> str:
        """For what stands for the tensor."""
        way = self.way or self.move
        assert way is not None, "bug in legroom: a form that is none"
        return way.name.replace("-", "_")

    def encode(self, value: Any) -> Any:
        """What is held or moved, of a stand-in."""
        return value if self.way is None else self.way.put(value, *self.about)

    def put(self, graph: fx.Graph, value: fx.Node, like: Any) -> fx.Node:
        """Write down how it is put away."""
        held = value
        if self.way is not None:
            held = graph.call_function(self.way.put, (value, *self.about))
            held.meta["val"] = like = self.encode(like)
        if self.move is not None:
            tier = self.move.tier
            held = graph.call_function(self.move.put, (held, tier, self.label))
            held.meta["val"] = self.move.put(like, tier, self.label)
            if self.settled_before is None:
                held = self.transfer(graph, held, self.move.settle)
        return held

    def transfer(self, graph: fx.Graph, ticket: fx.Node, operation: Any) -> fx.Node:
        """Write down what is done about something that is elsewhere; another ticket for it."""
        assert self.move is not None, "bug in legroom: a transfer of what stays"
        made = graph.call_function(operation, (ticket, self.move.tier))
        made.meta["val"] = ticket.meta["val"]
        return made

    def get(self, graph: fx.Graph, held: fx.Node, like: Any) -> fx.Node:
        """Write down how it is given back."""
        if self.move is not None:
            moved = self.encode(like)
            held = graph.call_function(self.move.get, (held, *_layout(moved), self.move.tier))
            held.meta["val"] = moved
        if self.way is not None:
            held = graph.call_function(self.way.get, (held, *_layout(like), *self.about))
        return held


def _layout(value: Any) -> tuple[list[int], list[int], torch.dtype]:
    return list(value.shape), list(value.stride()), value.dtype


_TRANSFERS = {
    Transfer.SETTLE: ways.AbstractMove.settle,
    Transfer.FETCH: ways.AbstractMove.fetch,
}


class _Splitter:
    def __init__(
        self,
        joint: fx.GraphModule,
        code: PieceCode,
        program: PieceProgram,
        num_forward_outputs: int,
        deliver: Deliver | None,
        probe: PieceProbe | None,
        witness: PieceWitness | None,
    ) -> None:
        self._joint = joint
        self._code = code
        self._program = program
        self._nodes = {node.name: node for node in joint.graph.nodes}
        outputs = list(joint.graph.output_node().args[0])  # type: ignore[arg-type]
        self._forward_outputs = outputs[:num_forward_outputs]
        self._backward_outputs = outputs[num_forward_outputs:]
        self._deliver = deliver
        self._probe = probe
        self._witness = witness
        self._delivered: dict[int, fx.Node] = {}
        self._places = self._places_of_gradients()
        self._undelivered: list[int] = []
        self._last_read = self._last_reads()
        self._made_in_forward = {op.node for op in code.forward}
        self._makers = {op.node for op in (*code.forward, *code.backward)}
        self._dropped = self._storages(program.dropped)
        self._encoded = self._encoded_nodes()  # node: the way that it is held
        self._hidden = {*self._dropped, *map(self._storage, self._encoded)}
        self._held: dict[fx.Node, fx.Node] = {}  # node: its other form, in backward
        self._tickets: dict[fx.Node, fx.Node] = {}  # node: what now stands for it, elsewhere
        self._is_mutated = {storage for op in code.forward for storage in op.updates}
        self._saved: list[fx.Node] = []
        self._states: dict[fx.Node, fx.Node] = {}  # random operation: its state in backward
        self._backward = fx.Graph()
        self._env: dict[fx.Node, fx.Node] = {}
        self._first_body: fx.Node | None = None

    def _storages(self, places: Iterable[tuple[str, int]]) -> set[int]:
        writes = {op.node: op.writes for op in self._code.forward}
        try:
            return {writes[node][place] for node, place in places}
        except (KeyError, IndexError):
            raise MismatchError("a program drops what its graph does not make") from None

    def _storage(self, node: fx.Node) -> int:
        return self._code.storage_of[node.name]

    def _encoded_nodes(self) -> dict[fx.Node, _Form]:
        found = {}
        for each in self._program.encoded:
            way = ways.get(each.way) if each.way else None
            move = ways.get(each.move) if each.move else None
            if way is not None and not issubclass(way, ways.AbstractEncoding):
                raise MismatchError(f"a program encodes by {each.way}, which is no encoding")
            if move is not None and not issubclass(move, ways.AbstractMove):
                raise MismatchError(f"a program moves by {each.move}, which moves nothing")
            node = self._written(each.node, each.place)
            found[node] = _Form(way, each.about, move, each.settled_before, each.label or node.name)
        return found

    def _written(self, name: str, place: int) -> fx.Node:
        """The node that stands for one of the tensors that an operation writes."""
        (storage,) = self._storages([(name, place)])
        node: fx.Node = self._nodes[name]
        for each in (node, *_parts(node)):
            if self._code.storage_of.get(each.name) == storage:
                return each
        raise MismatchError(f"a program wants what {name} writes, and nothing stands for it")

    def split(self) -> tuple[fx.GraphModule, fx.GraphModule]:
        for number, instruction in enumerate(self._program.backward):
            node = self._nodes.get(instruction.node)
            if node is None:
                raise MismatchError(f"a program runs {instruction.node}, which its graph lacks")
            if instruction.transfer is not None and instruction.decoded is not None:
                self._transfer(instruction.node, instruction.decoded, instruction.transfer)
            elif instruction.decoded is not None:
                self._decode(instruction.node, instruction.decoded)
            elif instruction.is_rerun:
                self._rerun(node)
            else:
                self._emit(node, instruction.variant)
                self._undelivered.extend(self._places.get(node.name, ()))
            self._hand_over(number)
        results = [
            self._delivered.get(place, self._value(node)) if isinstance(node, fx.Node) else node
            for place, node in enumerate(self._backward_outputs)
        ]
        self._add_inputs()
        self._backward.output(results)
        _copy_output_meta(self._joint.graph, self._backward, self._backward_outputs)
        _drop_unread(self._backward)
        return self._forward_module(), _module(self._joint, self._backward, "legroom_backward")

    # Backward ------------------------------------------------------------------------------------

    def _places_of_gradients(self) -> dict[str, list[int]]:
        """Places among the outputs of what an operation makes, if nothing else is that gradient."""
        places: dict[str, list[int]] = defaultdict(list)
        for place, node in enumerate(self._backward_outputs):
            if not isinstance(node, fx.Node) or self._backward_outputs.count(node) > 1:
                continue
            maker = node
            while maker.name not in {op.node for op in self._code.backward}:
                if len(maker.all_input_nodes) != 1:
                    break
                maker = maker.all_input_nodes[0]
            else:
                places[maker.name].append(place)
        return places

    def _last_reads(self) -> dict[int, int]:
        """For each storage, the last instruction that reads it."""
        return {
            self._code.storage_of[source.name]: number
            for number, instruction in enumerate(self._program.backward)
            if instruction.node in self._nodes
            for source in self._nodes[instruction.node].all_input_nodes
            if source.name in self._code.storage_of
        }

    def _hand_over(self, number: int) -> None:
        """Deliver the gradients that are made by now; see Note [Split], rule 5."""
        if self._deliver is None:
            return
        for place in tuple(self._undelivered):
            leaf = self._code.primals[place]
            if leaf is not None and self._last_read.get(leaf, -1) > number:
                continue
            self._undelivered.remove(place)
            gradient = self._backward_outputs[place]
            self._delivered[place] = self._backward.call_function(
                self._deliver, (place, self._value(gradient))
            )
            self._delivered[place].meta = dict(gradient.meta)

    def _emit(self, node: fx.Node, variant: str) -> None:
        if variant:
            made = variants.variant(variant).emit(self._backward, node, self._value)
            made.meta.update(node.meta)
            self._env[node] = made
        else:
            self._copy(node)
        self._take_apart(node)

    def _rerun(self, node: fx.Node) -> None:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            args = fx.node.map_arg(node.args, self._value)
            kwargs = fx.node.map_arg(node.kwargs, self._value)
            state = self._state_before(node)
            made = self._backward.call_function(
                run_with_state,
                (state, node.target, *args),  # type: ignore[arg-type]
                dict(kwargs),
            )
        elif node.target in _BATCH_NORMS:
            made = self._batch_norm_again(node)
        else:
            self._copy(node)
            made = self._env[node]
        made.meta = dict(node.meta)
        self._env[node] = made
        self._take_apart(node, only_dropped=True)

    def _batch_norm_again(self, node: fx.Node) -> fx.Node:
        """See Note [Split], rule 4."""
        source, weight, bias, _, _, is_training, momentum, eps = node.args
        if not is_training:
            self._copy(node)
            return self._env[node]
        args = fx.node.map_arg((source, weight, bias), self._value)
        return self._backward.call_function(
            _WITHOUT_STATISTICS,
            (*args, is_training, momentum, eps),
        )

    def _decode(self, maker: str, place: int) -> None:
        """See Note [Split], rules 7 and 8."""
        node = self._written(maker, place)
        made = self._encoded[node].get(self._backward, self._stand_in(node), node.meta["val"])
        made.meta = dict(node.meta)
        self._env[node] = made
        if self._probe is not None:
            self._env[node] = self._backward.call_function(self._probe, (maker, place, made))
            self._env[node].meta = dict(node.meta)

    def _transfer(self, maker: str, place: int, transfer: Transfer) -> None:
        node = self._written(maker, place)
        self._tickets[node] = self._encoded[node].transfer(
            self._backward, self._stand_in(node), _TRANSFERS[transfer]
        )

    def _stand_in(self, node: fx.Node) -> fx.Node:
        """What stands for something that is held in another form or elsewhere."""
        if node in self._tickets:
            return self._tickets[node]
        form, value = self._encoded[node], node.meta["val"]
        held = self._held[node] = self._backward.placeholder(f"{node.name}_{form.name}")
        held.meta["val"] = form.encode(value)
        if form.move is not None:
            held.meta["val"] = form.move.put(held.meta["val"], form.move.tier, form.label)
            self._tickets[node] = held
        return held

    def _state_before(self, node: fx.Node) -> fx.Node:
        state = self._backward.placeholder(f"{node.name}_state")
        state.meta["val"] = random_state_like(node)
        self._states[node] = state
        return state

    def _copy(self, node: fx.Node) -> fx.Node:
        unread = {node.args[place] for place in unread_places(node)}
        for source in node.all_input_nodes:
            if source not in unread:
                self._value(source)
        made = self._backward.node_copy(node, lambda each: self._env.get(each, each))
        for place in unread_places(node):
            made.update_arg(place, None)
        self._env[node] = made
        return made

    def _take_apart(self, node: fx.Node, *, only_dropped: bool = False) -> None:
        """See Note [Split], rule 3."""
        for part in _parts(node):
            storage = self._code.storage_of.get(part.name)
            if not only_dropped or storage in self._hidden:
                self._copy(part)

    def _value(self, node: fx.Node) -> fx.Node:
        """What stands for a node of the joint graph in backward; see Note [Split], rule 1."""
        found = self._env.get(node)
        if found is not None:
            return found
        if node.op == "placeholder" and is_tangent(node):
            return self._input(node)
        if node.op == "placeholder" or self._is_kept(node):
            self._saved.append(node)
            return self._input(node)
        if _maker(node).name in self._makers:
            raise MismatchError(f"a program reads {node.name} before it was given back")
        return self._copy(node)

    def _is_kept(self, node: fx.Node) -> bool:
        """Whether forward makes it, as a tensor of its own, and keeps it."""
        return (
            _maker(node).name in self._made_in_forward
            and self._code.storage_of.get(node.name) not in self._hidden
            and isinstance(node.meta.get("val"), torch.Tensor)
        )

    def _input(self, node: fx.Node) -> fx.Node:
        made = self._backward.placeholder(node.name)
        made.meta = dict(node.meta)
        self._env[node] = made
        return made

    def _add_inputs(self) -> None:
        """All inputs at the front, in AOTAutograd's order: what was saved, then the tangents."""
        tangents = [node for node in self._joint.graph.nodes if is_tangent(node)]
        for node in tangents:
            self._value(node)
        # AOTAutograd wants what custom functions put on their context at the end.
        self._saved.sort(key=lambda node: bool(node.meta.get("saved_tensor_with_no_vc_check")))
        checked = [node for node in self._saved if not _is_unchecked(node)]
        unchecked = [node for node in self._saved if _is_unchecked(node)]
        wanted = [self._env[node] for node in checked]
        wanted += [*self._states.values(), *self._held.values()]
        wanted += [self._env[node] for node in unchecked]
        wanted += [self._env[node] for node in tangents]
        self._order = checked, unchecked
        for node in reversed(wanted):
            self._backward._root.append(node)

    # Forward -------------------------------------------------------------------------------------

    def _forward_module(self) -> fx.GraphModule:
        graph, env = fx.Graph(), {}
        states: dict[fx.Node, fx.Node] = {}
        kept_before: dict[fx.Node, fx.Node] = {}
        checked, unchecked = self._order
        needed = self._needed_in_forward([*checked, *unchecked, *self._held])
        due = self._due_after(needed)
        held: dict[fx.Node, fx.Node] = {}
        shown, leaving = self._shown(), self._leaving()
        for node in self._joint.graph.nodes:
            if node.op == "placeholder" and not is_tangent(node):
                env[node] = graph.node_copy(node)
        for node in checked:
            if (
                node.op == "placeholder"
                and self._code.storage_of.get(node.name) in self._is_mutated
            ):
                kept_before[node] = graph.call_function(torch.ops.aten.clone.default, (env[node],))
                kept_before[node].meta = dict(node.meta)
        for node in self._joint.graph.nodes:
            if node.op == "placeholder" or node not in needed:
                continue
            if node in self._states:
                states[node] = graph.call_function(random_state, (str(_device_of(node)),))
                states[node].meta["val"] = self._states[node].meta["val"]
            self._settle(leaving.pop(node.name, ()), graph, held)
            env[node] = graph.node_copy(node, env.__getitem__)
            if self._witness is not None and node in shown:
                graph.call_function(self._witness.see, (*shown[node], env[node]))
            for encoded in due.get(node, ()):
                form, value = self._encoded[encoded], encoded.meta["val"]
                held[encoded] = form.put(graph, env[encoded], value)
        for left in leaving.values():  # before what forward does not run
            self._settle(left, graph, held)
        self._settle(self._leaving_while_returned(), graph, held)
        returned = [
            env[node] if isinstance(node, fx.Node) else node for node in self._forward_outputs
        ]
        returned += [kept_before.get(node, env[node]) for node in checked]
        returned += [states[node] for node in self._states]
        returned += [held[node] for node in self._held]
        returned += [env[node] for node in unchecked]
        graph.output(returned)
        _copy_output_meta(self._joint.graph, graph, self._forward_outputs)
        return _module(self._joint, graph, "legroom_forward")

    def _leaving(self) -> dict[str, list[fx.Node]]:
        """What has left before a node of forward, by the node's name."""
        found: dict[str, list[fx.Node]] = defaultdict(list)
        for node, form in self._encoded.items():
            if form.settled_before and node in self._held:
                found[form.settled_before].append(node)
        return found

    def _leaving_while_returned(self) -> list[fx.Node]:
        """What forward returns and would leave only in backward; see Note [Split], rule 8."""
        returned = {
            self._code.storage_of.get(node.name)
            for node in self._forward_outputs
            if isinstance(node, fx.Node)
        }
        return [
            node
            for node, form in self._encoded.items()
            if node in self._held
            and form.move is not None
            and form.settled_before == ""
            and self._storage(node) in returned
        ]

    def _settle(
        self, left: Iterable[fx.Node], graph: fx.Graph, held: dict[fx.Node, fx.Node]
    ) -> None:
        for node in left:
            form = self._encoded[node]
            held[node] = form.transfer(graph, held[node], ways.AbstractMove.settle)

    def _shown(self) -> dict[fx.Node, tuple[str, int]]:
        """What is shown to the witness."""
        if self._witness is None:
            return {}
        return {self._written(*where): where for where in self._witness.places}

    def _due_after(self, needed: set[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
        """What is to be encoded after each node of forward: its last reader, or itself."""
        last: dict[int, fx.Node] = {}
        for node in self._joint.graph.nodes:
            if node in needed and (node in self._encoded or node.name in self._made_in_forward):
                for each in (node, *node.all_input_nodes):
                    if each.name in self._code.storage_of:
                        last[self._storage(each)] = node
        due: dict[fx.Node, list[fx.Node]] = defaultdict(list)
        for node in self._encoded:
            if node in self._held:
                due[last[self._storage(node)]].append(node)
        return due

    def _needed_in_forward(self, saved: list[fx.Node]) -> set[fx.Node]:
        writers = [self._nodes[op.node] for op in self._code.forward if op.updates or op.is_random]
        pending = [node for node in self._forward_outputs if isinstance(node, fx.Node)]
        pending += writers + saved
        needed: set[fx.Node] = set()
        while pending:
            node = pending.pop()
            if node not in needed:
                needed.add(node)
                pending.extend(node.all_input_nodes)
        return needed


def _parts(node: fx.Node) -> Iterator[fx.Node]:
    return (user for user in list(node.users) if _is_part(user))


def _is_part(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


def _maker(node: fx.Node) -> fx.Node:
    """What has made a value: of a part, what was taken apart."""
    whole = node.args[0] if _is_part(node) else node
    assert isinstance(whole, fx.Node), "bug in legroom: a part of nothing"
    return whole


def _is_unchecked(node: fx.Node) -> bool:
    return bool(node.meta.get("saved_tensor_with_no_vc_check"))


def _device_of(node: fx.Node) -> torch.device:
    value = node.meta.get("val")
    first = value[0] if isinstance(value, list | tuple) else value
    return first.device if isinstance(first, torch.Tensor) else torch.device("cpu")


def random_state_like(node: fx.Node) -> torch.Tensor:
    """A stand-in for the generator's state, in the mode of the node's own stand-ins."""
    value: Any = node.meta["val"]
    first = value[0] if isinstance(value, list | tuple) else value
    state = random_state(str(first.device))
    mode = getattr(first, "fake_mode", None)
    return state if mode is None else mode.from_tensor(state)


def _copy_output_meta(joint: fx.Graph, graph: fx.Graph, wanted: list[Any]) -> None:
    meta = dict(joint.output_node().meta)
    meta.pop("desc", None)
    graph.output_node().meta.update(meta)


def _drop_unread(graph: fx.Graph) -> None:
    """Parts that nobody wants, and views that were made for nothing."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and _is_part(node):
            graph.erase_node(node)


def _module(joint: fx.GraphModule, graph: fx.Graph, name: str) -> fx.GraphModule:
    graph.lint()
    return fx.GraphModule(joint, graph, name)
