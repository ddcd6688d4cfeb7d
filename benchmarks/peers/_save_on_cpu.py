"""`torch.autograd.graph.save_on_cpu`: what backward reads lies in the host's memory."""

from __future__ import annotations

import dataclasses
from typing import final

import torch

from benchmarks.cases import Case
from benchmarks.peers._peer import BITWISE, AbstractPeer, Entrant, Setting


@final
class SaveOnCpu(AbstractPeer):
    """On a CPU there is nowhere to move to, so it costs hooks and saves nothing."""

    name = "save-on-cpu"
    summary = "torch.autograd.graph.save_on_cpu around the step (on a CPU it moves nothing)"
    exactness = "bitwise"
    rival = BITWISE

    def apply(self, case: Case, setting: Setting) -> Entrant:
        """The step within the context."""
        del setting

        def step() -> torch.Tensor:
            with torch.autograd.graph.save_on_cpu():
                return case.step()

        return Entrant(dataclasses.replace(case, step=step))
