"""Optimizers whose state has eight bits for each number: torchao's and bitsandbytes'."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

import torch

from benchmarks.cases import Case
from benchmarks.peers._peer import BITWISE, AbstractPeer, Entrant, NotForCaseError, Setting


class _EightBits(AbstractPeer):
    exactness = "lossy"
    rival = BITWISE  # gradients are exact; the state is not
    module: ClassVar[str]
    """Where its `AdamW8bit` is."""

    def apply(self, case: Case, setting: Setting) -> Entrant:
        """Let the case's optimizers step and forget through others, with their settings."""
        del setting
        module = importlib.import_module(self.module)
        classes = {torch.optim.AdamW: module.AdamW8bit, torch.optim.Adam: module.Adam8bit}
        for theirs in case.optimizers:
            made = classes.get(type(theirs))
            if made is None:
                raise NotForCaseError(f"has no 8-bit form of {type(theirs).__name__}")
            _replace(theirs, made)
        return Entrant(case)


class TorchaoOptimizer(_EightBits):
    """torchao's."""

    name = "torchao-8bit"
    summary = "torchao's AdamW8bit: optimizer state with 8 bits"
    package = "torchao"
    module = "torchao.optim"


class BitsAndBytesOptimizer(_EightBits):
    """bitsandbytes'."""

    name = "bitsandbytes-8bit"
    summary = "bitsandbytes' AdamW8bit: optimizer state with 8 bits"
    package = "bitsandbytes"
    module = "bitsandbytes.optim"


def _replace(theirs: torch.optim.Optimizer, made: Any) -> None:
    """The step of a case refers to its optimizer by name, so that one passes its calls on."""
    (group,) = theirs.param_groups
    kept = {key: group[key] for key in ("lr", "betas", "eps", "weight_decay")}
    other = made(group["params"], **kept)
    theirs.step, theirs.zero_grad = other.step, other.zero_grad  # type: ignore[method-assign]
