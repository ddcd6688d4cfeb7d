"""Captures the calls of modules in a step as pieces: TorchDynamo in front, AOTAutograd behind.

In go a recorded plain step, which tells what is called from outside, and the running program; out
come a `PieceCode` for every graph, and a `PieceRun` in the recording wherever one of them ran. See
Note [Pieces].
"""

# Note [Pieces]
# 1. Two steps. In the first, TorchDynamo's graphs run as they are, and it is seen which of their
#    outputs receive gradients. In the second, the others are detached, as eager leaves them out,
#    and AOTAutograd traces the joint graphs.
# 2. A piece computes nothing: what it returns is made empty, in the right shape. What it would
#    keep for backward are stand-ins that nobody counts, so that a recorded death is the caller's.
# 3. Calls that cannot be pieces run as they are and are recorded like everything outside.

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from legroom.capture._autograd import graph_of
from legroom.capture._graph import NotCaptured
from legroom.capture._joint import Output, PieceCode, read_joint_graph
from legroom.capture._kinds import Phase
from legroom.capture._modules import Call, ModulePaths, ModuleWatch
from legroom.capture._trace import RawOperation, Recorder
from legroom.errors import TorchInterfaceError

_TESTED = "2.13.0"
_RECOMPILE_LIMIT = 256


@dataclass
class PieceCall:
    """One run of a piece's forward, and what its storages were in the recording.

    Attributes:
        site: Number of the source line that called it, in the recorder's table.
        bound: Index of the recorded storage, by the piece's own number.
    """

    piece: int
    code: PieceCode
    site: int
    bound: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PieceRun:
    """What stands in the recording where a piece ran.

    Attributes:
        bound: As of the call, and what backward was given and returned.
    """

    call: PieceCall
    is_backward: bool
    bound: dict[int, int]


class Pieces:
    """Captures what modules do while they are called; see Note [Pieces].

    Attributes:
        codes: The joint graphs that were captured.
        is_learning: Whether this is the first of the two steps.
    """

    def __init__(
        self, recorder: Recorder, paths: ModulePaths, calls: list[Call], models: list[nn.Module]
    ) -> None:
        self.codes: list[PieceCode] = []
        self.is_learning = True
        self.failures: dict[str, str] = {}
        self._recorder = recorder
        self._paths = paths
        self._calls = calls
        self._models = {id(module) for model in models for module in model.modules()}
        self._watch = ModuleWatch(paths)
        self._num_calls = 0
        self._depth = 0
        self._root = ""
        self._open = contextlib.ExitStack()

    def install(self) -> None:
        """Let the outermost modules go through us, until `remove`."""
        self._open.enter_context(_dynamo_settings())
        self._recorder.current_module = lambda: self._watch.current
        for module in {id(call.module): call.module for call in self._calls}.values():
            if not self._models or id(module) in self._models:
                original = vars(module).get("_compiled_call_impl")
                _set_call(module, self._caller(module))
                self._open.callback(_set_call, module, original)

    def remove(self) -> None:
        """Leave the modules as they were."""
        self._open.close()

    def step_ends(self) -> None:
        """The next call is the first of a step."""
        self._num_calls = 0

    def not_captured(self) -> Iterator[NotCaptured]:
        """Calls that are no pieces, and places where one had to end."""
        seen = set()
        for call in self._calls:
            why = call.why_not or self.failures.get(call.path, "")
            if self._models and id(call.module) not in self._models:
                why = why or "it is none of the models that were named"
            if why and (call.path, why) not in seen:
                seen.add((call.path, why))
                yield NotCaptured(f"call of {call.path}", why)
        for reason in _graph_breaks():
            yield NotCaptured("a graph break", reason)

    # Calls ---------------------------------------------------------------------------------------

    def _caller(self, module: nn.Module) -> Callable[..., Any]:
        target: Any = dict(module.named_children()).get("_orig_mod", module)
        path = self._paths.path(module)

        def run(*args: Any, **kwargs: Any) -> Any:
            return target._call_impl(*args, **kwargs)

        # TorchDynamo leaves PyTorch's own code alone, nn.Sequential's too, unless ours calls it. It
        # keeps what it compiled by code object: one for each module, or two would share a piece.
        run.__code__ = run.__code__.replace()
        compiled: Any = torch.compile(run, backend=self._backend, dynamic=False)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return target._call_impl(*args, **kwargs)
            number, self._num_calls = self._num_calls, self._num_calls + 1
            self._depth += 1
            try:
                if self._is_captured(number, path):
                    try:
                        self._root = path
                        with _stance("default"), warnings.catch_warnings():
                            # About TorchDynamo's own doings; the program's were shown before.
                            warnings.simplefilter("ignore")
                            return compiled(*args, **kwargs)
                    except Exception as error:
                        self.failures[path] = _first_line(error)
                with self._watch.installed():
                    return target._call_impl(*args, **kwargs)
            finally:
                self._depth -= 1

        return call

    def _is_captured(self, number: int, path: str) -> bool:
        if path in self.failures or not torch.is_grad_enabled():
            return False
        if self._recorder.phase is Phase.BACKWARD:
            return False
        return number >= len(self._calls) or not self._calls[number].why_not

    def _backend(self, graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        dynamo: Any = importlib.import_module("torch._dynamo")
        disabled: Callable[..., Any] = dynamo.disable(_Source(self, graph, self._root).run)
        return disabled

    # Pieces --------------------------------------------------------------------------------------

    def trace(
        self, graph: fx.GraphModule, inputs: tuple[Any, ...], root: str
    ) -> Callable[..., Any]:
        """What to call instead of a graph of TorchDynamo's: a piece."""
        trace_joint, default_partition = _aot_interfaces()
        traced = _Traced(self._recorder)

        def partition(joint: Any, joint_inputs: Any, *, num_fwd_outputs: int, **rest: Any) -> Any:
            traced.code = read_joint_graph(
                joint, num_fwd_outputs, module_path=self._path_of_key, root=root
            )
            traced.piece = len(self.codes)
            self.codes.append(traced.code)
            return default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **rest)

        self._recorder.pause()
        try:
            piece: Callable[..., Any] = trace_joint(
                graph,
                inputs,
                fw_compiler=traced.make_forward,
                bw_compiler=traced.make_backward,
                inference_compiler=traced.make_inference,
                partition_fn=partition,
                keep_inference_input_mutations=True,
            )
        finally:
            self._recorder.resume()
        return piece

    def _path_of_key(self, key: str) -> str | None:
        identity = key.partition("@")[0]
        return self._paths.path_of_identity(int(identity)) if identity.isdigit() else None


class _Source:
    """A graph of TorchDynamo's, and what was learned about its outputs."""

    def __init__(self, pieces: Pieces, graph: fx.GraphModule, root: str) -> None:
        self._pieces = pieces
        self._graph = graph
        self._root = root
        self._has_run = False
        self._differentiable: set[int] = set()
        self._differentiated: set[int] = set()
        self._piece: Callable[..., Any] | None = None

    def run(self, *inputs: Any) -> Any:
        """Run the graph as it is, or the piece that it became."""
        if self._pieces.is_learning:
            return self._learn(inputs)
        if self._has_run and not self._differentiated:
            return self._graph(*inputs)
        if self._piece is None:
            unused = self._differentiable - self._differentiated
            graph = _with_detached_outputs(self._graph, unused) if unused else self._graph
            self._piece = self._pieces.trace(graph, inputs, self._root)
        return self._piece(*inputs)

    def _learn(self, inputs: tuple[Any, ...]) -> Any:
        self._has_run = True
        return tuple(
            self._watched(place, output) for place, output in enumerate(self._graph(*inputs))
        )

    def _watched(self, place: int, output: Any) -> Any:
        if not isinstance(output, torch.Tensor) or graph_of(output) is None:
            return output
        self._differentiable.add(place)
        # The graph may use what it returns: only the caller's use of it counts. A copy, because a
        # view would lose the hook when the caller writes into it.
        seen_by_caller = output.clone()
        seen_by_caller.register_hook(self._noting(place))  # type: ignore[no-untyped-call]
        return seen_by_caller

    def _noting(self, place: int) -> Callable[[torch.Tensor], None]:
        def note(gradient: torch.Tensor) -> None:
            self._differentiated.add(place)

        return note


def _with_detached_outputs(graph: fx.GraphModule, places: set[int]) -> fx.GraphModule:
    copied = fx.Graph()
    returned: Any = copied.graph_copy(graph.graph, {})
    detached = [
        copied.call_method("detach", (node,)) if place in places else node
        for place, node in enumerate(returned)
    ]
    copied.output(tuple(detached))
    return fx.GraphModule(graph, copied)


class _Traced:
    """What AOTAutograd calls instead of a compiled forward and backward; it records their runs."""

    def __init__(self, recorder: Recorder) -> None:
        self.code = PieceCode()
        self.piece = -1
        self._recorder = recorder
        self._call_of: dict[int, PieceCall] = {}
        self._last: PieceCall | None = None

    def make_inference(self, module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        """A graph without gradients runs as it is."""
        return _boxed(lambda args: list(module(*args)))

    def make_forward(self, module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        """What is called instead of the forward graph."""
        returned: Any = module.graph.output_node().args[0]
        stand_ins = [
            node.meta.get("val") if isinstance(node, fx.Node) else node
            for node in returned[len(self.code.forward_outputs) :]
        ]

        def run(args: list[Any]) -> list[Any]:
            call = PieceCall(self.piece, self.code, self._recorder.sites.here(""))
            given = self._bind(call.bound, self.code.primals, args)
            recorder = self._recorder
            for number, tensor in self.code.constants.items():
                call.bound[number] = recorder.add_storage(tensor, is_made=False).index
            outputs = self._make(self.code.forward_outputs, given, call.bound)
            self._append("forward", Phase.FORWARD, PieceRun(call, False, call.bound))
            kept = [self._stand_in(value) for value in stand_ins]
            for tensor in kept:
                if isinstance(tensor, torch.Tensor):
                    self._call_of[tensor.untyped_storage()._cdata] = call
            self._last = call
            return outputs + kept

        return _boxed(run)

    def make_backward(self, module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        """What is called instead of the backward graph."""
        names = [str(node.target) for node in module.graph.nodes if node.op == "placeholder"]

        def run(args: list[Any]) -> list[Any]:
            call = self._call_behind(args)
            bound = dict(call.bound)
            numbers = [self.code.tangents.get(name) for name in names]
            given = self._bind(bound, numbers, args)
            outputs = self._make(self.code.backward_outputs, given, bound)
            self._append("backward", Phase.BACKWARD, PieceRun(call, True, bound))
            return outputs

        return _boxed(run)

    def _call_behind(self, args: list[Any]) -> PieceCall:
        for value in args:
            if isinstance(value, torch.Tensor):
                call = self._call_of.get(value.untyped_storage()._cdata)
                if call is not None:
                    return call
        assert self._last is not None, "legroom: a backward ran before its forward"
        return self._last

    def _bind(
        self, bound: dict[int, int], numbers: list[int | None], args: list[Any]
    ) -> dict[int, torch.Tensor]:
        """Note which recorded storages came in; returns a tensor of each."""
        given: dict[int, torch.Tensor] = {}
        for number, value in zip(numbers, args, strict=True):
            if number is not None and isinstance(value, torch.Tensor):
                bound[number] = self._recorder.add_storage(value, is_made=False).index
                given[number] = value
        return given

    def _make(
        self,
        outputs: list[Output | None],
        given: dict[int, torch.Tensor],
        bound: dict[int, int],
    ) -> list[Any]:
        made: list[Any] = []
        self._recorder.pause()
        try:
            for output in outputs:
                made.append(None if output is None else self._returned(output, given))
        finally:
            self._recorder.resume()
        for output, tensor in zip(outputs, made, strict=True):
            if output is not None and output.storage not in bound:
                bound[output.storage] = self._recorder.add_storage(tensor, is_made=True).index
        return made

    def _returned(self, output: Output, given: dict[int, torch.Tensor]) -> torch.Tensor:
        value = output.value
        base = given.get(output.storage)
        if base is None:
            # No view, where possible: autograd would not let the caller write into one of several.
            made = _empty_like(value)
            if made.untyped_storage().nbytes() == value.untyped_storage().nbytes():
                given[output.storage] = made
                return made
            count = value.untyped_storage().nbytes() // value.element_size()
            base = torch.empty(count, dtype=value.dtype, device=value.device)
            given[output.storage] = base
        return base.as_strided(value.size(), value.stride(), value.storage_offset())

    def _stand_in(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        self._recorder.pause()
        try:
            return _empty_like(value)
        finally:
            self._recorder.resume()

    def _append(self, what: str, phase: Phase, run: PieceRun) -> None:
        name = f"piece {run.call.piece} {what}"
        self._recorder.operations.append(RawOperation(name, phase, run=run))


def _empty_like(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)


def _boxed(function: Callable[[list[Any]], list[Any]]) -> Callable[..., Any]:
    """Mark a function as taking its arguments in a list that it empties, so that they can die."""

    def run(args: list[Any]) -> list[Any]:
        outputs = function(args)
        args.clear()
        return outputs

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _stance(name: str) -> Any:
    set_stance: Any = torch.compiler.set_stance
    return set_stance(name)


# TorchDynamo -------------------------------------------------------------------------------------


def _aot_interfaces() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What traces a joint graph, and what splits one in two."""
    try:
        from torch._functorch.aot_autograd import aot_module_simplified
        from torch._functorch.partitioners import default_partition
    except ImportError:
        raise TorchInterfaceError(
            "torch._functorch.aot_autograd.aot_module_simplified", tested=_TESTED
        ) from None
    return aot_module_simplified, default_partition


def _set_call(module: nn.Module, function: Callable[..., Any] | None) -> None:
    if not hasattr(module, "_compiled_call_impl"):
        raise TorchInterfaceError("nn.Module._compiled_call_impl", tested=_TESTED)
    if function is None:
        vars(module).pop("_compiled_call_impl", None)
    else:
        vars(module)["_compiled_call_impl"] = function


@contextlib.contextmanager
def _dynamo_settings() -> Iterator[None]:
    import torch._dynamo
    import torch._functorch.config

    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    before = {name: counts.copy() for name, counts in counters.items()}
    counters.clear()
    settings = torch._dynamo.config.patch(
        ignore_logging_functions=_logging_functions(),
        recompile_limit=_RECOMPILE_LIMIT,
        accumulated_recompile_limit=_RECOMPILE_LIMIT,
        fail_on_recompile_limit_hit=True,
        optimize_ddp=False,
        allow_rnn=True,
    )
    with settings, torch._functorch.config.patch(donated_buffer=False), _same_path_as_eager():
        try:
            yield
        finally:
            torch._dynamo.reset()
            # What we compiled is gone: nobody must take it for the program's own.
            counters.clear()
            counters.update(before)


@contextlib.contextmanager
def _same_path_as_eager() -> Iterator[None]:
    """Keep transformers from another path under TorchDynamo than in eager.

    Its mixture of experts then reads values in backward, which cannot be traced, instead of
    calling `grouped_mm`.
    """
    experts: Any = sys.modules.get("transformers.integrations.moe")
    original = getattr(experts, "is_torchdynamo_compiling", None)
    if original is None:
        yield
        return
    experts.is_torchdynamo_compiling = lambda: False
    try:
        yield
    finally:
        experts.is_torchdynamo_compiling = original


def _logging_functions() -> set[Callable[..., Any]]:
    names = ("debug", "info", "warning", "error", "critical", "log", "warning_once", "info_once")
    owners = [logging.Logger, sys.modules.get("transformers.utils.logging")]
    found = itertools.product(owners, names)
    return {function for owner, name in found if callable(function := getattr(owner, name, None))}


def _graph_breaks() -> list[str]:
    import torch._dynamo

    return [_first_line(reason) for reason in torch._dynamo.utils.counters["graph_break"]]


def _first_line(reason: object) -> str:
    lines = [line.strip() for line in str(reason).strip().splitlines() if line.strip()]
    return lines[0] if lines else type(reason).__name__
