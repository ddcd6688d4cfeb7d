"""`torch.compile(model, backend="legroom", options={"budget": "6GiB"})`.

In comes each of TorchDynamo's graphs; out comes a function that is fitted at its first call. Each
graph is planned by itself, against the whole budget: a model that TorchDynamo breaks into several
graphs is better served by `legroom.fit`, which plans them together.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from torch import fx

from legroom.engine._fit import fit
from legroom.errors import UsageError

_OPTIONS = (
    "budget",
    "activations",
    "stash",
    "disk",
    "host",
    "optimizer",
    "exactness",
    "executor",
    "ways",
    "without",
    "max_gradient_error",
    "check_every",
    "preset",
    "effort",
    "time_limit_s",
)


def compile_backend(
    graph: fx.GraphModule, inputs: list[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """What torch.compile calls for each graph.

    Raises:
        UsageError: An option is unknown or wrong, or there is no budget.
    """
    dynamo: Any = importlib.import_module("torch._dynamo")
    given = dict(options or {})
    unknown = [name for name in given if name not in _OPTIONS]
    if unknown:
        raise UsageError(
            f"backend 'legroom' has no option {unknown[0]!r}; it takes {', '.join(_OPTIONS)}"
        )
    fitted = fit(graph.forward, **given)
    run: Callable[..., Any] = dynamo.disable(fitted.__call__)
    return run
