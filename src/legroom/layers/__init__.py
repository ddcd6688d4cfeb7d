"""Layers that need less memory, to put into a model by hand: `legroom.layers.LinearCrossEntropy`.

Each computes what PyTorch's own computes, up to rounding, and says what it saves.
"""

from legroom.layers._linear_cross_entropy import LinearCrossEntropy, linear_cross_entropy

__all__ = ["LinearCrossEntropy", "linear_cross_entropy"]
