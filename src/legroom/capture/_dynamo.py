"""TorchDynamo and AOTAutograd as legroom uses them: settings, calls, joint graphs.

In goes a callable and what to do with each of its graphs; out comes a callable that TorchDynamo
captures. Capture and engine both go through here, so that they see the same graphs.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx, nn

from legroom.capture._autocast import backward_habit
from legroom.capture._batch_norm import BATCH_NORMS
from legroom.capture._libraries import logging_functions, same_path_as_eager
from legroom.capture._operations import TAKEN_APART
from legroom.errors import TorchInterfaceError

_TESTED = "2.13.0"
_RECOMPILE_LIMIT = 256
_MARK = "_dynamo_static_input_type"

Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
Rewrite = Callable[[fx.GraphModule], list[str]]
"""Changes a graph before it is differentiated; says what it could not change."""


Settings = Callable[[], contextlib.AbstractContextManager[object]]


def captured(
    function: Callable[..., Any],
    backend: Backend,
    settings: Settings = contextlib.nullcontext,
) -> Callable[..., Any]:
    """The function with its graphs handed to `backend`, which says what runs instead.

    TorchDynamo leaves PyTorch's own code alone, nn.Sequential's too, unless ours calls it. It keeps
    what it compiled by code object: one for each call of this, or two would share a graph.

    Args:
        settings: Entered where TorchDynamo compiles, which most calls do not; `backend` is inside.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    run.__code__ = run.__code__.replace()
    dynamo: Any = importlib.import_module("torch._dynamo")
    # TorchDynamo never forgets a backend: through it, it would keep the model.
    owner = weakref.WeakMethod(backend) if inspect.ismethod(backend) else lambda: backend

    def disabled(graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        handler = owner()
        assert handler is not None, "bug in legroom: a graph for somebody who is gone"
        made: Callable[..., Any] = dynamo.disable(handler(graph, inputs))
        _remove_marks(inputs)
        return made

    compiled = _compiled_under(settings, run, disabled)

    def call(*args: Any, **kwargs: Any) -> Any:
        with stance("default"), warnings.catch_warnings():
            # About TorchDynamo's own doings; the program's were shown before.
            warnings.simplefilter("ignore")
            return compiled(*args, **kwargs)

    return call


def _compiled_under(
    settings: Settings, function: Callable[..., Any], backend: Backend
) -> Callable[..., Any]:
    """What `torch.compile` makes of the function, with settings for each frame that it compiles."""
    dynamo: Any = importlib.import_module("torch._dynamo")
    context: Any = dynamo.optimize(backend, dynamic=False)
    convert: Any = getattr(context, "callback", None)
    if not callable(convert):
        raise TorchInterfaceError("torch._dynamo.optimize(...).callback", tested=_TESTED)

    def convert_under_settings(*frame: Any) -> Any:
        with settings():
            return convert(*frame)

    # What TorchDynamo has compiled it finds again by the backend behind such attributes.
    convert_under_settings._torchdynamo_orig_backend = convert  # type: ignore[attr-defined]
    context.callback = convert_under_settings
    made: Callable[..., Any] = context(function)
    return made


def _remove_marks(inputs: list[Any]) -> None:
    """Take off parameters what TorchDynamo notes there while it traces.

    A model that is pickled whole would carry the note, and its file would not be plain's.
    """
    for value in inputs:
        if getattr(value, _MARK, None) == "unguarded":  # another one is the user's own
            delattr(value, _MARK)


def stance(name: str) -> contextlib.AbstractContextManager[object]:
    """How compiled code behaves inside: `"default"`, `"force_eager"`."""
    set_stance: Any = torch.compiler.set_stance
    made: contextlib.AbstractContextManager[object] = set_stance(name)
    return made


@contextlib.contextmanager
def dynamo_settings() -> Iterator[None]:
    """Settings under which legroom captures and compiles graphs."""
    import torch._dynamo
    import torch._functorch.config

    settings = torch._dynamo.config.patch(
        ignore_logging_functions=logging_functions(),
        recompile_limit=_RECOMPILE_LIMIT,
        accumulated_recompile_limit=_RECOMPILE_LIMIT,
        fail_on_recompile_limit_hit=True,
        optimize_ddp=False,
        allow_rnn=True,
        skip_nnmodule_hook_guards=False,
    )
    # Compiled when it first runs, a backward with constants cannot be copied while fakes are about.
    traced = torch._functorch.config.patch(
        donated_buffer=False,
        backward_pass_autocast=backward_habit.setting,
        force_non_lazy_backward_lowering=True,
    )
    with settings, traced, same_path_as_eager():
        yield


@contextlib.contextmanager
def without_traces(*, forgets: bool = True) -> Iterator[None]:
    """Leave TorchDynamo's counters as they were, and nothing that was compiled inside.

    Args:
        forgets: Whether to forget everything compiled, before and inside. Not where code that was
            compiled earlier is in use; what is compiled inside then stays, for its own backend.
    """
    import torch._dynamo

    if forgets:
        torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    before = {name: counts.copy() for name, counts in counters.items()}
    counters.clear()
    try:
        yield
    finally:
        if forgets:
            torch._dynamo.reset()
        # What we compiled is gone: nobody must take it for the program's own.
        counters.clear()
        counters.update(before)


def graph_breaks() -> list[str]:
    """Why TorchDynamo had to end graphs, since its counters were cleared."""
    import torch._dynamo

    return [first_line(reason) for reason in torch._dynamo.utils.counters["graph_break"]]


def first_line(reason: object) -> str:
    """The first line with something on it; the type's name if there is none."""
    lines = [line.strip() for line in str(reason).strip().splitlines() if line.strip()]
    return lines[0] if lines else type(reason).__name__


def trace_joint(
    graph: fx.GraphModule,
    inputs: tuple[Any, ...],
    *,
    partition: Callable[..., Any],
    make_forward: Callable[..., Any],
    make_backward: Callable[..., Any],
    make_inference: Callable[..., Any],
) -> Callable[..., Any]:
    """What AOTAutograd makes of a graph, with `partition` deciding what forward keeps."""
    try:
        from torch._functorch.aot_autograd import aot_module_simplified
    except ImportError:
        raise TorchInterfaceError(
            "torch._functorch.aot_autograd.aot_module_simplified", tested=_TESTED
        ) from None
    traced: Callable[..., Any] = aot_module_simplified(
        graph,
        inputs,
        fw_compiler=_retainable(make_forward),
        bw_compiler=make_backward,
        inference_compiler=make_inference,
        partition_fn=partition,
        decompositions=TAKEN_APART | BATCH_NORMS,
        keep_inference_input_mutations=True,
    )
    return traced


def _retainable(make_forward: Callable[..., Any]) -> Callable[..., Any]:
    """The compiler, after which AOTAutograd knows that backward writes into nothing it is given.

    It was told not to look for that, takes it for unknown, and would refuse `retain_graph=True`.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        context: Any = torch._guards.TracingContext.try_get()
        if context is not None and context.fw_metadata is not None:
            context.fw_metadata.bw_donated_idxs = []
        return make_forward(*args, **kwargs)

    return run


def default_partition(*args: Any, **kwargs: Any) -> Any:
    """PyTorch's own: forward keeps everything that backward reads."""
    try:
        from torch._functorch.partitioners import default_partition as split
    except ImportError:
        raise TorchInterfaceError(
            "torch._functorch.partitioners.default_partition", tested=_TESTED
        ) from None
    return split(*args, **kwargs)


def boxed(function: Callable[[list[Any]], list[Any]]) -> Callable[..., Any]:
    """Mark a function as taking its arguments in a list that it empties, so that they can die."""

    def run(args: list[Any]) -> list[Any]:
        outputs = function(args)
        args.clear()
        return outputs

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def untraced(function: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """The function, which somebody else's torch.compile calls as it is rather than look inside."""
    dynamo: Any = importlib.import_module("torch._dynamo")
    made: Callable[..., Any] = dynamo.disable(function, reason=reason)
    return made


def set_call(module: nn.Module, function: Callable[..., Any] | None) -> None:
    """Let calls of the module go through `function`; None: as it was made."""
    if not hasattr(module, "_compiled_call_impl"):
        raise TorchInterfaceError("nn.Module._compiled_call_impl", tested=_TESTED)
    if function is None:
        vars(module).pop("_compiled_call_impl", None)
        vars(module).pop("__getstate__", None)
        return
    vars(module)["_compiled_call_impl"] = function
    kind: Any = type(module)
    if kind.__getstate__ is not nn.Module.__getstate__:
        owner = weakref.ref(module)
        vars(module)["__getstate__"] = lambda: _plain_state(owner())


def _plain_state(module: Any) -> Any:
    """What is pickled of a module of which PyTorch does not leave out itself how it is called.

    `nn.LSTM` and its like say themselves what is pickled of them: all that they have.
    """
    state = type(module).__getstate__(module)
    if not isinstance(state, dict):
        return state
    ours = ("_compiled_call_impl", "__getstate__")
    return {name: value for name, value in state.items() if name not in ours}


def call_that_is_set(module: nn.Module) -> Callable[..., Any] | None:
    """What calls of the module go through: ours, or what `module.compile()` made; None if plain."""
    function: Callable[..., Any] | None = vars(module).get("_compiled_call_impl")
    return function


def own_call(module: nn.Module) -> Callable[..., Any]:
    """What calling the module does without `set_call`; of a compiled model, what it was."""
    compiled = dict(module.named_children()).get("_orig_mod")
    call: Callable[..., Any] = module._call_impl if compiled is None else compiled
    return call


def prepared(
    graph: fx.GraphModule, *, detached: frozenset[int], rewrites: tuple[Rewrite, ...] = ()
) -> tuple[fx.GraphModule, list[str], tuple[Rewrite, ...]]:
    """The graph as it is to be differentiated, what rewrites say of it, and which changed it.

    Args:
        detached: Places of outputs that nobody takes gradients of.
        rewrites: Change it, one after the other.
    """
    if not detached and not rewrites:
        return graph, [], ()
    copied = fx.Graph()
    returned: Any = copied.graph_copy(graph.graph, {})
    outputs = [
        copied.call_method("detach", (node,)) if place in detached else node
        for place, node in enumerate(returned)
    ]
    copied.output(tuple(outputs))
    made = fx.GraphModule(graph, copied)
    notes, changed = [], []
    for rewrite in rewrites:
        before = _operations(made)
        notes += rewrite(made)
        if _operations(made) != before:
            changed.append(rewrite)
    made.recompile()
    return made, notes, tuple(changed)


def _operations(graph: fx.GraphModule) -> list[tuple[str, Any]]:
    return [(node.op, node.target) for node in graph.graph.nodes]


def source_key(graph: fx.GraphModule, inputs: tuple[Any, ...] | list[Any]) -> str:
    """What tells one of TorchDynamo's graphs from another: operations and shapes."""
    nodes = [f"{node.op} {node.target} {node.name} {node.args}" for node in graph.graph.nodes]
    shapes = [
        f"{tuple(value.shape)} {value.dtype} {value.requires_grad}"
        if isinstance(value, torch.Tensor)
        else repr(value)
        for value in inputs
    ]
    return hashlib.sha256("\n".join((*nodes, *shapes)).encode()).hexdigest()[:16]
