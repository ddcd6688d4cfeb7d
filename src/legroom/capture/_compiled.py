"""Compiled models whose calls must still go through what is set on the model inside.

`torch.compile(model)` steps around `set_call` where the model's class is one of PyTorch's, as
`nn.Sequential` is: TorchDynamo then traces a frame of its own that enters `forward` itself.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from legroom.capture._dynamo import call_that_is_set
from legroom.errors import TorchInterfaceError

_TESTED = "2.13.0"
_num_open = 0
_original: Callable[[Any], None] | None = None


@contextlib.contextmanager
def compiled_models_pass_calls_on() -> Iterator[None]:
    """While it is open, models that are compiled call the model inside where a call is set on it.

    Once nothing is set, they run what was compiled. It may be open several times.

    Raises:
        TorchInterfaceError: PyTorch makes compiled models elsewhere now.
    """
    global _num_open, _original  # noqa: PLW0603 - one class of PyTorch's, however many are fitted
    compiled_class: Any = importlib.import_module("torch._dynamo.eval_frame").OptimizedModule
    if not _num_open:
        _original = getattr(compiled_class, "_initialize", None)
        if _original is None:
            raise TorchInterfaceError("OptimizedModule._initialize", tested=_TESTED)
        compiled_class._initialize = _initialize
    _num_open += 1
    try:
        yield
    finally:
        _num_open -= 1
        if not _num_open:
            compiled_class._initialize, _original = _original, None


def _initialize(compiled: Any) -> None:
    assert _original is not None, "bug in legroom: a compiled model is made by nobody"
    _original(compiled)
    model: nn.Module = compiled._orig_mod
    run = compiled.forward
    if not _is_of_torch(model) or call_that_is_set(model) is None:
        return

    def forward(*args: Any, **kwargs: Any) -> Any:
        if call_that_is_set(model) is not None:
            return model(*args, **kwargs)
        return run(*args, **kwargs)

    compiled.forward = forward


def _is_of_torch(model: nn.Module) -> bool:
    """Whether TorchDynamo enters it by a frame of its own: it asks for a method that is skipped."""
    return type(model).forward.__module__.partition(".")[0] == "torch"
