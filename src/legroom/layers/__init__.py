"""Layers that need less memory, to put into a model by hand: `legroom.layers.GELU`.

Each computes what PyTorch's own computes, up to rounding, and says what it saves. `legroom.swap`
puts them into a model.
"""

from legroom.layers._activations import GELU, Mish, SiLU, Softplus
from legroom.layers._chunked_mlp import ChunkedMLP, chunked_mlp, rows_at_a_time
from legroom.layers._dropout import Dropout
from legroom.layers._known import known_activation
from legroom.layers._linear_cross_entropy import LinearCrossEntropy, linear_cross_entropy
from legroom.layers._norms import GroupNorm, InPlaceBatchNorm, LayerNorm, RMSNorm
from legroom.layers._pointwise import POINTWISE, pointwise_name
from legroom.layers._swap import swap

__all__ = [
    "GELU",
    "POINTWISE",
    "ChunkedMLP",
    "Dropout",
    "GroupNorm",
    "InPlaceBatchNorm",
    "LayerNorm",
    "LinearCrossEntropy",
    "Mish",
    "RMSNorm",
    "SiLU",
    "Softplus",
    "chunked_mlp",
    "known_activation",
    "linear_cross_entropy",
    "pointwise_name",
    "rows_at_a_time",
    "swap",
]
