"""Drop what a random operation made and draw the very same numbers again in backward."""

from __future__ import annotations

from typing import final

from legroom.capture import OperationInfo, TensorInfo
from legroom.ways._way import AbstractWay, Exactness, RunCost, Saving

_STATE_BYTES = 5056
"""The state of PyTorch's CPU generator (a Mersenne twister); that of a GPU's has 16 bytes."""


@final
class Replay(AbstractWay):
    """Run a random operation again from the generator's state before it."""

    name = "replay"
    summary = "drop what a random operation made, draw the same numbers again from the saved state"
    exactness = Exactness.BITWISE
    origin = "torch.utils.checkpoint (preserve_rng_state), functorch's run_with_rng_state"
    costs = "the producer's time once more; 5 KiB for the generator's state"
    when = (
        "For what a random operation draws in forward: the mask of a dropout, noise that is added."
    )
    not_with = "Operations that are not random, and random ones that write into older tensors."

    @classmethod
    def estimate(
        cls,
        tensor: TensorInfo,
        producer: OperationInfo,
        costs: tuple[RunCost, ...] = (),
        readers: tuple[OperationInfo, ...] = (),
    ) -> Saving | None:
        """For random operations only; worth it only for tensors larger than the state."""
        if not producer.is_random or producer.updates or not producer.is_forward:
            return None
        return Saving(held_bytes=_STATE_BYTES, runs_producer=True)
