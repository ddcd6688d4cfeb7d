"""Finds forward passes that built a graph which no backward pass used."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import final

from legroom.meter._profile import Finding, Profile, TensorUse
from legroom.meter.findings._base import AbstractFinder, lives_at

_HELD_SHARE = 0.8
"""Without a graph an activation dies once the next one is made; with one they all stay."""
_WHOLE_SHARE = 0.5


@final
class ThrownAwayGraph(AbstractFinder):
    """The model ran once more with gradients on, for a number that is only looked at."""

    name = "thrown-away-graph"
    title = "a forward pass kept tensors that no backward pass used"
    remedy = (
        "wrap that call in `with torch.no_grad():` (or torch.inference_mode()); if its loss "
        "should have counted, add it to the loss that backward() starts from"
    )

    def find(self, profile: Profile) -> Iterable[Finding]:
        """Calls of a model all of whose activations outlive the call, though none is kept.

        Seen only if the step also calls the same model in earnest: each activation then has a
        twin in the stash, made by the same line in the same module.
        """
        twins = {_made(t) for t in profile.tensors if t.kind == "stash" and t.born_ms > 0}
        times: dict[tuple[object, ...], int] = defaultdict(int)
        calls: dict[int, list[TensorUse]] = defaultdict(list)
        for tensor in sorted(profile.tensors, key=lambda t: t.born_ms):
            if tensor.kind == "temporaries_forward" and tensor.module and _made(tensor) in twins:
                calls[times[_made(tensor)]].append(tensor)
                times[_made(tensor)] += 1
        modules = {str(tensor.module) for tensor in profile.tensors if _made(tensor) in twins}
        thrown = [
            tensor
            for call in calls.values()
            if _is_held(call) and _is_whole(call, modules)
            for tensor in call
        ]
        return self.report(
            profile,
            thrown,
            "{count:activation}, {bytes}, stayed alive for a backward pass that never came",
        )


def _made(tensor: TensorUse) -> tuple[object, ...]:
    return (tensor.operation, tensor.kernel, tensor.module, tensor.shape, tensor.dtype)


def _is_whole(call: list[TensorUse], modules: set[str]) -> bool:
    """Whether most modules took part that do in earnest, within what the call is of.

    What a few modules make twice, a cache of keys and values among it, is no second pass.
    """
    made_in = {str(tensor.module) for tensor in call}
    parts = zip(*(name.split(".") for name in made_in), strict=False)
    num_common = len(list(itertools.takewhile(lambda each: len(set(each)) == 1, parts)))
    common = next(iter(made_in)).split(".")[:num_common]
    inside = [name for name in modules if name.split(".")[:num_common] == common]
    return len(made_in) >= _WHOLE_SHARE * len(inside)


def _is_held(call: list[TensorUse]) -> bool:
    if len(call) < 3:
        return False
    last_ms = max(t.born_ms for t in call)
    held = sum(t.bytes for t in call if lives_at(t, last_ms))
    return held >= _HELD_SHARE * sum(t.bytes for t in call)
