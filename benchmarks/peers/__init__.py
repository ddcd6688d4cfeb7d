"""The registry of peers: what legroom is compared with, and legroom itself.

To add one: a file with an `AbstractPeer`, a line in the tuple.
"""

from benchmarks.peers._blocks import checkpoint_blocks
from benchmarks.peers._checkpoint import Checkpoint, CheckpointSegments, GradientCheckpointing
from benchmarks.peers._compiled import (
    Compiled,
    QuantisedActivations,
    TorchBudget,
    TorchBudgetEager,
    eager_partitions,
)
from benchmarks.peers._inplace_abn import InPlaceABN
from benchmarks.peers._legroom import Legroom
from benchmarks.peers._optimizers import BitsAndBytesOptimizer, TorchaoOptimizer
from benchmarks.peers._peer import AbstractPeer, Entrant, NotForCaseError, Setting, label_of
from benchmarks.peers._plain import Plain
from benchmarks.peers._presets import (
    VDNN,
    ActNN,
    Checkmate,
    Chen,
    Echo,
    Gist,
    GistLossy,
    SuperNeurons,
    Tempo,
)
from benchmarks.peers._save_on_cpu import SaveOnCpu
from benchmarks.peers._selective import Selective
from benchmarks.peers._unavailable import UNAVAILABLE, Unavailable
from legroom.registry import Registry

__all__ = [
    "UNAVAILABLE",
    "AbstractPeer",
    "Entrant",
    "NotForCaseError",
    "Setting",
    "Unavailable",
    "checkpoint_blocks",
    "eager_partitions",
    "get",
    "label_of",
    "names",
]

_BUILT_IN: tuple[type[AbstractPeer], ...] = (
    Plain,
    Checkpoint,
    CheckpointSegments,
    GradientCheckpointing,
    Selective,
    SaveOnCpu,
    TorchBudgetEager,
    Chen,
    Checkmate,
    Echo,
    Gist,
    Tempo,
    VDNN,
    SuperNeurons,
    InPlaceABN,
    Compiled,
    TorchBudget,
    QuantisedActivations,
    GistLossy,
    ActNN,
    TorchaoOptimizer,
    BitsAndBytesOptimizer,
    Legroom,
)

_registry: Registry[type[AbstractPeer]] = Registry("peer", _BUILT_IN)
names, get = _registry.names, _registry.get
