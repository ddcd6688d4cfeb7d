"""Recomputation as people switch it on: by block, in √N segments, by the model's own method."""

from __future__ import annotations

from typing import final

from benchmarks.cases import Case
from benchmarks.fitting import model_to_change
from benchmarks.peers._blocks import checkpoint_blocks, checkpoint_segments, require_blocks
from benchmarks.peers._peer import (
    BITWISE,
    DEFAULT,
    AbstractPeer,
    Entrant,
    NotForCaseError,
    Setting,
)


@final
class Checkpoint(AbstractPeer):
    """Every block by itself."""

    name = "checkpoint"
    summary = "every block under torch.utils.checkpoint"
    exactness = "bitwise"
    rival = BITWISE
    quick_settings = (DEFAULT,)

    def apply(self, case: Case, setting: Setting) -> Entrant:
        """Wrap the blocks."""
        del setting
        require_blocks(case)
        checkpoint_blocks(case)
        return Entrant(case)


@final
class CheckpointSegments(AbstractPeer):
    """Several blocks together."""

    name = "checkpoint-segments"
    summary = "√N blocks together under torch.utils.checkpoint (Chen et al. 2016)"
    exactness = "bitwise"
    rival = BITWISE

    def apply(self, case: Case, setting: Setting) -> Entrant:
        """Join neighbouring blocks and wrap them."""
        del setting
        require_blocks(case)
        checkpoint_segments(case)
        return Entrant(case)


@final
class GradientCheckpointing(AbstractPeer):
    """What the model offers itself."""

    name = "gradient-checkpointing"
    summary = "the model's own gradient_checkpointing_enable()"
    exactness = "bitwise"
    rival = BITWISE

    def apply(self, case: Case, setting: Setting) -> Entrant:
        """Call it."""
        del setting
        model = model_to_change(case)
        enable = getattr(model, "gradient_checkpointing_enable", None)
        if enable is None:
            raise NotForCaseError("its model has no gradient_checkpointing_enable()")
        if not getattr(model, "supports_gradient_checkpointing", False):
            raise NotForCaseError("its model says that it does not support it")
        enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return Entrant(case)
