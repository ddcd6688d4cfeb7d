"""The blocks of a case under `torch.utils.checkpoint`, one by one or several together.

In goes a case with its list of blocks; its modules are changed in place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.cases import Case
from benchmarks.peers._peer import NotForCaseError

_SEED = 5


def require_blocks(case: Case) -> None:
    """Refuse a case without blocks.

    Raises:
        NotForCaseError: It has none.
    """
    if not case.blocks:
        raise NotForCaseError("has no blocks that a person would checkpoint")


def checkpoint_blocks(case: Case, **options: Any) -> None:
    """What a person would do: every block under torch.utils.checkpoint, with its options."""
    for path in case.blocks:
        checkpoint_module(case.model.get_submodule(path), **options)


def checkpoint_module(module: nn.Module, **options: Any) -> None:
    """Every call of the module under torch.utils.checkpoint."""
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(original, *args, use_reentrant=False, **options, **kwargs)

    module.forward = forward  # type: ignore[method-assign]


def checkpoint_segments(case: Case) -> None:
    """√N blocks that follow each other under one torch.utils.checkpoint (Chen et al. 2016).

    The first block of a segment runs all of them, the others hand on what they are given. That is
    right where each block's first argument is what the one before returned, and nobody else reads
    that; the loss of one batch, compared before and after, tells.

    Raises:
        NotForCaseError: The blocks are no chain.
    """
    before = _probe(case)
    length = max(2, round(math.sqrt(len(case.blocks))))
    segments = [each for each in _segments(case.blocks, length) if len(each) > 1]
    for paths in segments:
        _join([case.model.get_submodule(path) for path in paths])
    try:
        after = _probe(case) if segments else None
    except Exception as error:  # whatever a model does when its blocks are no chain
        raise NotForCaseError(f"its blocks are no chain ({type(error).__name__})") from error
    if after is None or not torch.equal(before, after):
        raise NotForCaseError("its blocks are no chain")
    for path in case.blocks:
        if not any(path in paths[1:] for paths in segments):
            checkpoint_module(case.model.get_submodule(path))


def _segments(paths: Sequence[str], length: int) -> list[list[str]]:
    """Runs of at most so many neighbours in one container."""
    found = []
    for _, group in itertools.groupby(paths, key=lambda path: path.rpartition(".")[0]):
        members = list(group)
        found += [members[at : at + length] for at in range(0, len(members), length)]
    return found


def _join(modules: list[nn.Module]) -> None:
    calls = [each.forward for each in modules]

    def run_all(x: Any, *args: Any, **kwargs: Any) -> Any:
        for call in calls:
            x = call(x, *args, **kwargs)
        return x

    def hand_on(x: Any, *args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        return x

    modules[0].forward = run_all  # type: ignore[method-assign]
    for each in modules[1:]:
        each.forward = hand_on  # type: ignore[method-assign]


def _probe(case: Case) -> torch.Tensor:
    """The loss of the fixed batch; buffers stay as they were."""
    kept = {name: buffer.clone() for name, buffer in case.model.named_buffers()}
    torch.manual_seed(_SEED)
    with torch.no_grad():
        loss = case.loss()
        for name, buffer in case.model.named_buffers():
            buffer.copy_(kept[name])
    return loss
