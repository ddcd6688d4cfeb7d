"""Hold the tensor as it is: what plain PyTorch does."""

from __future__ import annotations

from typing import final

from legroom.capture import OperationInfo, TensorInfo
from legroom.ways._way import AbstractWay, Exactness, RunCost, Saving


@final
class Hold(AbstractWay):
    """Keep the tensor from forward to backward."""

    name = "hold"
    summary = "keep the tensor until backward has used it"
    exactness = Exactness.BITWISE
    origin = "plain PyTorch"
    costs = "its bytes, no time"
    when = "Always part of a plan: whatever no other way applies to, or is worth it for, is held."
    not_with = "Nothing; it cannot be left out."

    @classmethod
    def estimate(
        cls,
        tensor: TensorInfo,
        producer: OperationInfo,
        costs: tuple[RunCost, ...] = (),
        readers: tuple[OperationInfo, ...] = (),
    ) -> Saving:
        """Always possible."""
        return Saving(held_bytes=tensor.num_bytes, keeps_whole=True)
