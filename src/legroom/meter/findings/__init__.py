"""Findings: hidden consumers of memory, by name, with what would remove them.

In goes a `Profile`; out come its findings, largest first. To add one, add a file with a subclass
of `AbstractFinder`, a line to the tuple below and a section to docs/findings.md; tests and reports
pick it up.
"""

from __future__ import annotations

from legroom.meter._profile import Finding, Profile
from legroom.meter.findings._activation_input_and_output import ActivationInputAndOutput
from legroom.meter.findings._attention_math import AttentionMath
from legroom.meter.findings._base import AbstractFinder
from legroom.meter.findings._dense_embedding_gradient import DenseEmbeddingGradient
from legroom.meter.findings._dropout_mask import DropoutMask
from legroom.meter.findings._gradients_through_forward import GradientsThroughForward
from legroom.meter.findings._kept_graph import KeptGraph
from legroom.meter.findings._logits import Logits
from legroom.meter.findings._norm_input_and_output import NormInputAndOutput
from legroom.meter.findings._optimizer_foreach import OptimizerForeach
from legroom.meter.findings._optimizer_temporaries import OptimizerTemporaries
from legroom.meter.findings._pooling_indices import PoolingIndices
from legroom.meter.findings._repeated_masks import RepeatedMasks
from legroom.meter.findings._rnn_workspace import RnnWorkspace
from legroom.meter.findings._spelled_out_activation import SpelledOutActivation
from legroom.meter.findings._thrown_away_graph import ThrownAwayGraph
from legroom.meter.findings._upcast_copies import UpcastCopies

_BUILT_IN: tuple[type[AbstractFinder], ...] = (
    ActivationInputAndOutput,
    AttentionMath,
    DenseEmbeddingGradient,
    DropoutMask,
    GradientsThroughForward,
    KeptGraph,
    Logits,
    NormInputAndOutput,
    OptimizerForeach,
    OptimizerTemporaries,
    PoolingIndices,
    RepeatedMasks,
    RnnWorkspace,
    SpelledOutActivation,
    ThrownAwayGraph,
    UpcastCopies,
)


def finders() -> tuple[type[AbstractFinder], ...]:
    """Every kind of finding that legroom looks for."""
    return _BUILT_IN


def find_findings(profile: Profile) -> tuple[Finding, ...]:
    """All findings in the profile, largest first."""
    found = [finding for finder in _BUILT_IN for finding in finder().find(profile)]
    return tuple(sorted(found, key=lambda finding: (-finding.bytes, finding.name)))


__all__ = ["AbstractFinder", "find_findings", "finders"]
