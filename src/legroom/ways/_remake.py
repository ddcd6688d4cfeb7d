"""Drop the tensor and run its producer again in backward."""

from __future__ import annotations

from typing import final

from legroom.capture import OperationInfo, TensorInfo
from legroom.ways._way import AbstractWay, Exactness, RunCost, Saving


@final
class Remake(AbstractWay):
    """Run a deterministic operation again, from inputs that are themselves given back."""

    name = "remake"
    summary = "drop the tensor, run its producer again in backward"
    exactness = Exactness.BITWISE
    origin = "Chen 2016, Checkmate, Echo, Knowles 2018, Gruslys 2016"
    costs = "the producer's time once more; no bytes"
    when = "For tensors that take little time for their bytes: results of norms, activations, sums."
    not_with = (
        "Random operations (`replay` runs those again) and operations that write into older "
        "tensors. Each operation runs again at most once in a step."
    )

    @classmethod
    def estimate(
        cls,
        tensor: TensorInfo,
        producer: OperationInfo,
        costs: tuple[RunCost, ...] = (),
        readers: tuple[OperationInfo, ...] = (),
    ) -> Saving | None:
        """Not for random operations (see `replay`), nor where older tensors are written into."""
        if producer.is_random or producer.updates or not producer.is_forward:
            return None
        return Saving(held_bytes=0, runs_producer=True)
