"""The kinds of memory and the phases of a step: the rows of every table in legroom.

One list of each; the ledger, the JSON file, the terminal and the page all read them from here.
"""

from __future__ import annotations

import enum


class Kind(enum.Enum):
    """What a block of memory is for. The rows always add up to the measured total."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer_state"
    STASH = "stash"
    TEMPORARIES_FORWARD = "temporaries_forward"
    TEMPORARIES_BACKWARD = "temporaries_backward"
    TEMPORARIES_OPTIMIZER = "temporaries_optimizer"
    INPUTS = "inputs"
    WORKSPACE = "workspace"
    UNTRACKED = "untracked"

    @property
    def title(self) -> str:
        """The kind as people read it."""
        return _TITLES[self][0]

    @property
    def meaning(self) -> str:
        """What the kind holds, in one clause."""
        return _TITLES[self][1]


_TITLES = {
    Kind.WEIGHTS: ("weights", "parameters and buffers"),
    Kind.GRADIENTS: ("gradients", "`.grad` of the parameters"),
    Kind.OPTIMIZER_STATE: ("optimizer state", "moments, momentum, step counts"),
    Kind.STASH: ("stash", "what forward leaves for backward"),
    Kind.TEMPORARIES_FORWARD: ("temporaries of forward", "made in forward or loss, not kept"),
    Kind.TEMPORARIES_BACKWARD: ("temporaries of backward", "gradients on their way"),
    Kind.TEMPORARIES_OPTIMIZER: ("temporaries of the optimizer", "made while updating"),
    Kind.INPUTS: ("inputs", "batches and other data held outside the step"),
    Kind.WORKSPACE: ("workspace", "scratch memory inside one operation"),
    Kind.UNTRACKED: ("untracked", "allocated, but by nothing that legroom could see"),
}

STATE = (Kind.WEIGHTS, Kind.GRADIENTS, Kind.OPTIMIZER_STATE)
"""What stays when activations are gone."""


class Phase(enum.Enum):
    """A part of the training step."""

    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"
