"""A joint forward-and-backward graph of AOTAutograd, read into storages and operations.

In goes the traced graph; out comes a `PieceCode`: which storages it makes, what it computes in
forward and in backward, and what its inputs and outputs are to those storages. Views, and nodes
that compute nothing, are gone; see Note [Graph] in `_graph.py`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from legroom.capture._fuse import fuse
from legroom.capture._in_place import note_in_place, written_into
from legroom.capture._into_zeros import write_into_zeros
from legroom.capture._losses import copy_losses
from legroom.capture._nodes import is_tangent, nodes_of_backward
from legroom.capture._signature import signature_of
from legroom.capture._sites import is_model_code, line_of

_FRAME = re.compile(r'File "(.+)", line (\d+), in ')
_BATCH_NORM = (
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit",
    "native_batch_norm",
)
_BATCH_NORM_BACKWARD = torch.ops.aten.native_batch_norm_backward.default
_RUNNING = (3, 4)
"""Places of the running mean and variance among the arguments of a batch norm or its gradient."""


@dataclass(frozen=True, slots=True)
class LocalStorage:
    """A storage as the piece knows it.

    Attributes:
        is_given: Whether a caller hands it in: a primal, a tangent, a constant.
        name: Name of the node that made it.
    """

    index: int
    num_bytes: int
    shape: tuple[int, ...]
    dtype: str
    is_given: bool
    name: str
    line: str = ""
    module: str = ""


@dataclass(frozen=True, slots=True)
class LocalOperation:
    """An operation of a piece; storages are the piece's own numbers."""

    name: str
    node: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    updates: tuple[int, ...]
    remake_reads: tuple[int, ...] | None
    signature: str
    is_random: bool
    line: str
    module: str


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor that a piece returns: a storage and how to look at it."""

    storage: int
    value: torch.Tensor


@dataclass
class PieceCode:
    """A captured piece of the step.

    Attributes:
        primals: Storage of each input of forward; None where it is no tensor.
        tangents: Storage of each input of backward, by the name of its placeholder.
        constants: Tensors that are part of the graph itself, by storage.
        forward_outputs: What forward returns, before what it keeps for backward.
        backward_outputs: The gradient of each primal; None where it has none.
        storage_of: The storage behind each node that stands for one tensor, by name.
    """

    storages: list[LocalStorage] = field(default_factory=list)
    primals: list[int | None] = field(default_factory=list)
    tangents: dict[str, int] = field(default_factory=dict)
    constants: dict[int, torch.Tensor] = field(default_factory=dict)
    forward: list[LocalOperation] = field(default_factory=list)
    backward: list[LocalOperation] = field(default_factory=list)
    forward_outputs: list[Output | None] = field(default_factory=list)
    backward_outputs: list[Output | None] = field(default_factory=list)
    storage_of: dict[str, int] = field(default_factory=dict)

    @property
    def differentiated(self) -> frozenset[int]:
        """Storages of the inputs that get gradients."""
        pairs = zip(self.primals, self.backward_outputs, strict=False)
        return frozenset(
            storage for storage, gradient in pairs if storage is not None and gradient is not None
        )

    def num_uses(self, storage: int) -> int:
        """How many operations of forward read a storage: gradients that are added up, at most."""
        return sum(storage in operation.reads for operation in self.forward)

    @property
    def outline(self) -> str:
        """The operations by name and node, without shapes: what a program for it refers to."""
        parts = [f"{op.name} {op.node}" for op in (*self.forward, *self.backward)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def read_joint_graph(
    joint: fx.GraphModule,
    num_forward_outputs: int,
    *,
    module_path: Callable[[str], str | None],
    root: str,
) -> PieceCode:
    """The piece that a joint graph describes; the graph is changed first, see Note [Fusing],
    Note [Into zeros], Note [Losses] and Note [In place].

    Args:
        num_forward_outputs: How many of the graph's outputs forward returns.
        module_path: Path of the module that TorchDynamo knows by a key; None if unknown.
        root: Path of the module that was called.
    """
    write_into_zeros(joint)
    copy_losses(joint)
    fuse(joint)
    note_in_place(joint)
    return _Reader(joint, module_path, root).read(num_forward_outputs)


class _Reader:
    def __init__(
        self, joint: fx.GraphModule, module_path: Callable[[str], str | None], root: str
    ) -> None:
        self._joint = joint
        self._module_path = module_path
        self._root = root
        self._code = PieceCode()
        self._number: dict[int, int] = {}
        self._places: dict[fx.Node, tuple[str, str]] = {}
        self._kept: list[torch.UntypedStorage] = []

    def read(self, num_forward_outputs: int) -> PieceCode:
        nodes = list(self._joint.graph.nodes)
        outputs = list(_flat(nodes[-1].args[0]))
        forward, alive = self._sections(nodes, outputs, num_forward_outputs)
        for node in nodes:
            if node.op in ("placeholder", "get_attr"):
                self._add_given(node)
        for section, wanted in ((self._code.forward, True), (self._code.backward, False)):
            for node in nodes:
                if node.op == "call_function" and node in alive and (node in forward) is wanted:
                    operation = self._operation(node)
                    if operation is not None:
                        section.append(operation)
        returned = [self._output(node) for node in outputs]
        self._code.forward_outputs = returned[:num_forward_outputs]
        self._code.backward_outputs = returned[num_forward_outputs:]
        for node in nodes:
            value = node.meta.get("val")
            if _has_storage(value):
                number = self._number.get(value.untyped_storage()._cdata)
                if number is not None:
                    self._code.storage_of[node.name] = number
        return self._code

    def _sections(
        self, nodes: list[fx.Node], outputs: list[Any], num_forward_outputs: int
    ) -> tuple[set[fx.Node], set[fx.Node]]:
        """Nodes of forward, and all nodes that something depends on."""
        late = nodes_of_backward(nodes)
        # Random numbers that nobody reads are drawn all the same: those after them depend on it.
        writers = [node for node in nodes if _is_mutable(node) or _is_random(node)]
        forward = _ancestors(
            [node for node in outputs[:num_forward_outputs] if isinstance(node, fx.Node)]
            + [node for node in writers if node not in late]
        )
        rest = [node for node in outputs if isinstance(node, fx.Node)]
        return forward, forward | _ancestors(rest + writers)

    def _add_given(self, node: fx.Node) -> None:
        value: Any = node.meta.get("val")
        if node.op == "get_attr":
            value = _attribute(self._joint, str(node.target))
        number = None
        if isinstance(value, torch.Tensor):
            number = self._storage(value, node, is_given=True)
        if node.op == "get_attr":
            if number is not None:
                self._code.constants[number] = value
                node.meta.setdefault("val", value)
        elif is_tangent(node):
            if number is not None:
                self._code.tangents[node.name] = number
        else:
            self._code.primals.append(number)

    def _storage(self, value: torch.Tensor, node: fx.Node, *, is_given: bool = False) -> int:
        storage = value.untyped_storage()
        number = self._number.get(storage._cdata)
        if number is None:
            number = self._number[storage._cdata] = len(self._code.storages)
            self._kept.append(storage)
            line, module = ("", "") if is_given else self._place(node)
            self._code.storages.append(
                LocalStorage(
                    index=number,
                    num_bytes=storage.nbytes(),
                    shape=tuple(int(size) for size in value.shape),
                    dtype=str(value.dtype).removeprefix("torch."),
                    is_given=is_given,
                    name=node.name,
                    line=line,
                    module=module,
                )
            )
        return number

    def _operation(self, node: fx.Node) -> LocalOperation | None:
        if not isinstance(node.target, torch._ops.OpOverload | torch._ops.HigherOrderOperator):
            return None
        written = _written_nodes(node)
        operand = written_into(node)
        if operand is not None:
            written.append(operand)
            self._join(node, operand)
        made = [value for value in _flat(node.meta.get("val")) if _has_storage(value)]
        new = [value for value in made if value.untyped_storage()._cdata not in self._number]
        updates = self._numbers_of(written)
        if not new and not updates:
            return None
        unread = {node.args[place] for place in unread_places(node)}
        reads = self._numbers_of(each for each in node.all_input_nodes if each not in unread)
        writes = tuple(dict.fromkeys(self._storage(value, node) for value in new))
        line, module = self._place(node)
        return LocalOperation(
            name=str(node.target),
            node=node.name,
            reads=reads,
            writes=writes,
            updates=updates,
            remake_reads=self._remake_reads(node),
            signature=_signature(node),
            is_random=_is_random(node),
            line=line,
            module=module,
        )

    def _join(self, node: fx.Node, operand: fx.Node) -> None:
        """Let a node's storage be that of an operand; see Note [In place], rule 4."""
        storage = node.meta["val"].untyped_storage()
        (self._number[storage._cdata],) = self._numbers_of([operand])
        self._kept.append(storage)

    def _numbers_of(self, nodes: Iterable[fx.Node]) -> tuple[int, ...]:
        values = (value for node in nodes for value in _values(node) if _has_storage(value))
        numbers = (self._number.get(value.untyped_storage()._cdata) for value in values)
        return tuple(dict.fromkeys(number for number in numbers if number is not None))

    def _remake_reads(self, node: fx.Node) -> tuple[int, ...] | None:
        """A batch norm is run again without its running statistics; others as they were."""
        if _base_name(node) not in _BATCH_NORM or len(node.args) < 6 or not node.args[5]:
            return None
        kept = [arg for place, arg in enumerate(node.args) if place not in _RUNNING]
        return self._numbers_of(arg for arg in kept if isinstance(arg, fx.Node))

    def _output(self, node: Any) -> Output | None:
        value: Any = node.meta.get("val") if isinstance(node, fx.Node) else None
        if not _has_storage(value):
            return None
        return Output(self._storage(value, node), value)

    def _place(self, node: fx.Node) -> tuple[str, str]:
        """Source line and module of a node; a copy into a buffer has those of what is copied."""
        place = self._places.get(node)
        if place is None:
            line = _line_in(node.meta.get("stack_trace") or "")
            stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
            place = line, self._module_in(stack)
            if not line and not stack and node.all_input_nodes and _is_mutable(node):
                place = self._place(node.all_input_nodes[-1])
            self._places[node] = place
        return place

    def _module_in(self, stack: dict[str, tuple[str, type]]) -> str:
        for key in reversed(stack):
            path = self._module_path(key)
            if path is not None:
                return path
        return self._root


def unread_places(node: fx.Node) -> tuple[int, ...]:
    """Places of arguments that an operation is given and does not read: it may get None.

    The gradient of a batch norm in training is handed the running statistics too.
    """
    if node.target is _BATCH_NORM_BACKWARD and node.args[7]:
        return _RUNNING
    return ()


def _values(node: fx.Node) -> Iterator[Any]:
    """What a node stands for; the outputs of an operation are told apart by their own nodes."""
    return _flat(node.meta.get("val"))


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _has_storage(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _is_mutable(node: fx.Node) -> bool:
    return (
        node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and node.target._schema.is_mutable
    )


def _is_random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _written_nodes(node: fx.Node) -> list[fx.Node]:
    if not _is_mutable(node):
        return []
    target: Any = node.target
    written: list[fx.Node] = []
    for place, argument in enumerate(target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            written.extend(item for item in _flat(value) if isinstance(item, fx.Node))
    return written


def _ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    seen: set[fx.Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            pending.extend(node.all_input_nodes)
    return seen


def _attribute(module: fx.GraphModule, target: str) -> Any:
    found: Any = module
    for part in target.split("."):
        found = getattr(found, part)
    return found


def _base_name(node: fx.Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    return str(getattr(packet, "__name__", ""))


def _signature(node: fx.Node) -> str:
    if not isinstance(node.target, torch._ops.OpOverload):
        return ""

    def value_of(argument: fx.Node) -> Any:
        return argument.meta.get("val")

    args = fx.node.map_arg(node.args, value_of)
    kwargs = fx.node.map_arg(node.kwargs, value_of)
    return signature_of(node.target, tuple(args), dict(kwargs))


def _line_in(stack_trace: str) -> str:
    """The innermost line outside PyTorch of a formatted stack."""
    frames = [
        (file, int(number)) for file, number in _FRAME.findall(stack_trace) if is_model_code(file)
    ]
    return line_of(*frames[-1]) if frames else ""
