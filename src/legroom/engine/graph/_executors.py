"""What runs a planned graph: eager kernels, or what Inductor compiles."""

from __future__ import annotations

import abc
import contextlib
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, final

import torch
from torch import fx
from torch._ops import OpOverload

from legroom.capture import FUNCTIONAL, fake_rules, write_in_place
from legroom.engine.graph._decompositions import DECOMPOSITIONS
from legroom.errors import TorchInterfaceError, UsageError
from legroom.registry import unknown_name
from legroom.ways import Exactness

_TESTED = "2.13.0"


class Executor(abc.ABC):
    """Turns a graph into something that can be called with a list of arguments.

    Attributes:
        exactness: How close to plain PyTorch its results are.
        can_deliver: Whether a graph may call functions of ours, in Python.
        is_compiler: Whether its kernels are others than plain PyTorch's.
        without: Names of ways that it cannot carry out.
        plainer: What takes less memory beside a plan, and more time; None: nothing does.
    """

    name: ClassVar[str]
    exactness: ClassVar[Exactness]
    can_deliver: ClassVar[bool]
    is_compiler: ClassVar[bool]
    without: ClassVar[tuple[str, ...]] = ()
    plainer: Executor | None = None

    @abc.abstractmethod
    def compile(self, graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        """A callable that takes its arguments in a list and empties it."""


def view_or_copy(value: torch.Tensor, size: list[int]) -> torch.Tensor:
    """A view, as was traced; a copy where the real tensor lies otherwise than its fake one did."""
    try:
        return value.view(size)
    except RuntimeError:
        return value.reshape(size)


@final
class Eager(Executor):
    """The same kernels as plain PyTorch, one after the other."""

    name = "eager"
    exactness = Exactness.BITWISE
    can_deliver = True
    is_compiler = False

    def compile(self, graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        """Python code that releases every value after its last use."""
        try:
            from torch.fx.graph import _BoxedCodeGen
        except ImportError:
            raise TorchInterfaceError("torch.fx.graph._BoxedCodeGen", tested=_TESTED) from None
        write_in_place(graph.graph)
        for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
            node.target = view_or_copy
        _turn_once(graph.graph)
        graph.graph.set_codegen(_BoxedCodeGen())
        forward = _code_of(graph.graph)

        def run(args: list[Any]) -> Any:
            return forward(graph, args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


_OPERATION = re.compile(r"\btorch\.ops\.(\w+)\.(\w+)\.(\w+)\(")


def _code_of(graph: fx.Graph) -> Callable[..., Any]:
    """The graph as a Python function that looks up no operation by name when it runs.

    Through five names and the Python code of `OpOverload`, a call takes 0.4 µs more.
    """
    code = graph.python_code("self")
    names = dict(code.globals)

    def called(match: re.Match[str]) -> str:
        operation: Any = functools.reduce(getattr, match.groups(), torch.ops)
        if type(operation) is not OpOverload:
            return match.group()
        name = "_".join(("called", *match.groups()))
        names[name] = getattr(operation, "_op", operation)
        return f"{name}("

    exec(_OPERATION.sub(called, code.src), names)
    function: Callable[..., Any] = names["forward"]
    return function


def _turn_once(graph: fx.Graph) -> None:
    """Take out what turns a matrix twice, as gradients of linear layers are.

    What the graph returns stays: whether that is a view is known to AOTAutograd.
    """
    turn = torch.ops.aten.t.default
    for node in graph.find_nodes(op="call_function", target=turn):
        (before,) = node.args
        is_returned = any(user.op == "output" for user in node.users)
        if isinstance(before, fx.Node) and before.target is turn and not is_returned:
            node.replace_all_uses_with(before.args[0])
            graph.erase_node(node)
            if not before.users:
                graph.erase_node(before)


@final
class Inductor(Executor):
    """Kernels that Inductor fuses and compiles: other rounding than plain PyTorch.

    Args:
        lays_out: Whether convolutions may have their channels last, which is faster on a CPU and
            now and then takes a copy more than was planned.
    """

    name = "inductor"
    exactness = Exactness.ROUNDING
    can_deliver = False
    is_compiler = True
    # It writes into memory again that it takes to be free, and so into what is still on its way.
    without = ("replay", "sparse", "host", "disk")

    def __init__(self, *, lays_out: bool = True) -> None:
        self._lays_out = lays_out
        self.plainer = Inductor(lays_out=False) if lays_out else None

    def compile(self, graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        """What Inductor makes of the graph, after its decompositions; random numbers are eager's.

        The plan was made before: what it drops stays dropped, what it runs again stays run again.
        """
        try:
            from torch._guards import detect_fake_mode
            from torch._inductor import config
            from torch._inductor.compile_fx import compile_fx_inner
            from torch._inductor.decomposition import select_decomp_table
            from torch.fx.experimental.proxy_tensor import make_fx
        except ImportError:
            raise TorchInterfaceError(
                "torch._inductor.compile_fx.compile_fx_inner", tested=_TESTED
            ) from None
        # The plan has put everything in an order that keeps the peak low; Inductor's own is worse.
        settings = config.patch(
            fallback_random=True,
            reorder_for_peak_memory=False,
            layout_optimization=self._lays_out and _is_convolutional(graph.graph),
        )
        # What a planned call opens is not relied on: somebody may compile outside of one.
        with settings, _fusing_neighbours(), _inputs_as_they_lie(), fake_rules():
            table = {**select_decomp_table(), **FUNCTIONAL, **DECOMPOSITIONS}
            # Constants that decompositions make must have no memory either.
            with detect_fake_mode(inputs) or contextlib.nullcontext():
                decomposed = make_fx(graph, decomposition_table=table)(*inputs)
            compiled: Any = compile_fx_inner(decomposed, inputs)
        return compiled  # type: ignore[no-any-return]


_FARTHEST = 24
"""Between the first and the last operation of a kernel there are at most so many in the graph."""


@contextlib.contextmanager
def _fusing_neighbours() -> Iterator[None]:
    """Inductor fuses only what the plan has put close together.

    It runs a fused kernel where the first of its operations stands, or the last. What the plan
    makes again right before it is needed reads what others read as well, is fused with them, and
    then lies in memory for half of backward. By itself Inductor looks at the distance for some
    fusions only, and allows 64.
    """
    try:
        from torch._inductor import config
        from torch._inductor.choices import InductorChoices
        from torch._inductor.virtualized import V
    except ImportError:
        raise TorchInterfaceError(
            "torch._inductor.choices.InductorChoices", tested=_TESTED
        ) from None

    class Neighbours(InductorChoices):
        def uuid(self) -> str:
            """What tells kernels in Inductor's cache from those fused otherwise."""
            return f"legroom, neighbours within {_FARTHEST}, inputs as they lie"

        @staticmethod
        def can_fuse(scheduler: Any, node1: Any, node2: Any, shared_data_score: int) -> bool:
            first = min(node1.min_order, node2.min_order)
            last = max(node1.max_order, node2.max_order)
            if last - first > _FARTHEST:
                return False
            return InductorChoices.can_fuse(scheduler, node1, node2, shared_data_score)

    # In this order: the handler that is put back is made from the setting, if there was none yet.
    with V.set_choices_handler(Neighbours()), config.patch(inductor_choices_class=Neighbours):
        yield


def _is_convolutional(graph: fx.Graph) -> bool:
    """Whether what convolutions make is read as images are: by elements, and by channels.

    Channels last, a group norm or an attention needs copies of its inputs: a U-Net for diffusion
    took a fifth longer, and a ViT, of which one layer is a convolution, took more than planned.
    """
    aten: Any = torch.ops.aten
    counts = Counter(node.target for node in graph.nodes if node.op == "call_function")
    if counts[aten.native_group_norm.default] + counts[aten.native_group_norm_backward.default]:
        return False
    convolutions = counts[aten.convolution.default] + counts[aten.convolution_backward.default]
    products = sum(counts[each.default] for each in (aten.mm, aten.addmm, aten.bmm))
    return convolutions > products


@contextlib.contextmanager
def _inputs_as_they_lie() -> Iterator[None]:
    """Inductor lays out anew what a graph makes for convolutions, not what the graph is given.

    By itself it begins with a copy of every weight, channels last, and hands that to backward in
    place of the weight: so all copies are alive at the peak. Without, a convolution has its weight
    copied when it runs.
    """
    try:
        from torch._inductor.graph import GraphLowering

        lowering: Any = GraphLowering
        prefer = lowering.find_nodes_prefer_channels_last
    except (ImportError, AttributeError):
        raise TorchInterfaceError(
            "torch._inductor.graph.GraphLowering.find_nodes_prefer_channels_last", tested=_TESTED
        ) from None

    def prefer_made(self: Any) -> Any:
        found = prefer(self)
        return type(found)(node for node in found if node.op != "placeholder")

    lowering.find_nodes_prefer_channels_last = prefer_made
    try:
        yield
    finally:
        lowering.find_nodes_prefer_channels_last = prefer


_EXECUTORS = {each.name: each for each in (Eager, Inductor)}


def names() -> tuple[str, ...]:
    """Names of the executors."""
    return tuple(_EXECUTORS)


def executors_without(*ways: str) -> tuple[str, ...]:
    """Names of the executors that cannot carry out one of these ways."""
    return tuple(each.name for each in _EXECUTORS.values() if {*ways} & {*each.without})


def choose_executor(name: str, exactness: str) -> Executor:
    """The executor of that name.

    Raises:
        UnknownNameError: There is none.
        UsageError: Its results are not as exact as was asked for.
    """
    if name not in _EXECUTORS:
        raise unknown_name("executor", name, names())
    executor = _EXECUTORS[name]
    if not Exactness(exactness).allows(executor.exactness):
        raise UsageError(
            f"executor {name!r} changes rounding, but exactness is {exactness!r}; "
            f"ask for exactness {executor.exactness.value!r}, or for executor 'eager'"
        )
    return executor()
