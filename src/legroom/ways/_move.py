"""Ways that hold a tensor elsewhere: it leaves after its last use in forward and comes back.

In goes a tensor and how fast a tier is on this machine; out come the forms in which moving it can
be planned. The operations hand the tensor to the tier and take it back; see Note [Moves].
"""

# Note [Moves]
# 1. What stands for a tensor meanwhile is a ticket (see Note [Tickets] in `tiers`): a few bytes
#    that no allocator counts, whose lifetime is that of the bytes on the tier.
# 2. Four operations, each of which returns a ticket or the tensor, so that a graph keeps their
#    order: `tier_put`, `tier_settle` (the tensor's memory is let go), `tier_fetch` (memory is taken
#    again, and filled in the background), `tier_get`.
# 3. A tensor may be moved in two forms. One does so behind what is computed: its memory is let go
#    when it has left, and taken again before it is read, when the plan says. The other waits: less
#    memory, more time.
# 4. Moving takes the processor's time too, to copy: `compute_slowdown` is measured, and counts.
# 5. Encoded first, fewer bytes are moved (compressing DMA): any encoding can be moved in place of
#    the tensor.
# 6. Nothing is moved unless asked for: a disk has a life of its own, and nobody else can use memory
#    that is pinned.

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, final

import torch

from legroom import tiers
from legroom.capture import LIBRARY, OperationInfo, TensorInfo
from legroom.meter import TierSpeed
from legroom.ways._encoding import is_dense
from legroom.ways._way import AbstractWay, Exactness, RunCost, Saving

_LEAST_BYTES = 1 << 16
"""What is smaller takes longer to ask for than to move."""


def _put(value: torch.Tensor, tier: str, label: str) -> torch.Tensor:
    return tiers.current(tier).put(value, label=label)


def _settle(ticket: torch.Tensor, tier: str) -> torch.Tensor:
    return tiers.current(tier).settle(ticket)


def _fetch(ticket: torch.Tensor, tier: str) -> torch.Tensor:
    return tiers.current(tier).fetch(ticket)


def _get(
    ticket: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    tier: str,
) -> torch.Tensor:
    return tiers.current(tier).get(ticket, size, stride, dtype)


# A graph knows a ticket as a tensor of the device that it stands for, so that it knows where what
# comes back will be. In truth it is in host memory.
def _ticket_like(value: torch.Tensor, *about: Any) -> torch.Tensor:
    return value.new_empty(1, dtype=torch.int64)


def _back_like(
    ticket: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    tier: str,
) -> torch.Tensor:
    return ticket.new_empty_strided(size, stride, dtype=dtype)


for _name, _schema, _real, _fake in (
    ("tier_put", "(Tensor value, str tier, str label) -> Tensor", _put, _ticket_like),
    ("tier_settle", "(Tensor ticket, str tier) -> Tensor", _settle, _ticket_like),
    ("tier_fetch", "(Tensor ticket, str tier) -> Tensor", _fetch, _ticket_like),
    (
        "tier_get",
        "(Tensor ticket, int[] size, int[] stride, ScalarType dtype, str tier) -> Tensor",
        _get,
        _back_like,
    ),
):
    LIBRARY.define(f"{_name}{_schema}")
    LIBRARY.impl(_name, _real, "CompositeExplicitAutograd")
    LIBRARY.impl(_name, _fake, "Meta")


class AbstractMove(AbstractWay):
    """A way that holds a tensor on a tier; see Note [Moves].

    Attributes:
        tier: Its name, as in `legroom tiers`.
        argument, option: How it is asked for, in Python and in a terminal.
    """

    tier: ClassVar[str]
    argument: ClassVar[str]
    option: ClassVar[str]
    is_on_request = True
    put: ClassVar[Any] = torch.ops.legroom.tier_put.default
    settle: ClassVar[Any] = torch.ops.legroom.tier_settle.default
    fetch: ClassVar[Any] = torch.ops.legroom.tier_fetch.default
    get: ClassVar[Any] = torch.ops.legroom.tier_get.default

    @classmethod
    @abc.abstractmethod
    def is_for(cls, device: str) -> bool:
        """Whether the tier takes tensors from this device."""

    @classmethod
    def estimate(
        cls,
        tensor: TensorInfo,
        producer: OperationInfo,
        costs: tuple[RunCost, ...] = (),
        readers: tuple[OperationInfo, ...] = (),
    ) -> Saving | None:
        """Nothing can be said without knowing how fast the tier is: `forms` does."""
        return None

    @classmethod
    def forms(
        cls,
        tensor: TensorInfo,
        producer: OperationInfo,
        speed: TierSpeed,
        encoded: Saving | None = None,
    ) -> tuple[Saving, ...]:
        """How the tensor can be moved: behind what is computed, and waited for; Note, rule 3.

        Args:
            encoded: What encoding it first takes; None: it is moved as it is.
        """
        moved_bytes = tensor.num_bytes if encoded is None else encoded.held_bytes
        if not producer.is_forward or moved_bytes < _LEAST_BYTES or not is_dense(tensor):
            return ()
        shared = encoded or Saving(held_bytes=0)
        leave_ms, return_ms = speed.put_ms(moved_bytes), speed.get_ms(moved_bytes)
        slower = max(0.0, speed.compute_slowdown - 1.0)
        behind = replace(
            shared,
            held_bytes=0,
            put_ms=shared.put_ms + slower * leave_ms,
            get_ms=shared.get_ms + slower * return_ms,
            tier=cls.tier,
            moved_bytes=moved_bytes,
            leave_ms=leave_ms,
            return_ms=return_ms,
        )
        waiting = replace(
            shared,
            held_bytes=0,
            tier=cls.tier,
            moved_bytes=moved_bytes,
            leave_ms=speed.put_ms(moved_bytes, computing=False),
            return_ms=speed.get_ms(moved_bytes, computing=False),
            waits=True,
        )
        return behind, waiting


@final
class Host(AbstractMove):
    """Held in pinned host memory, which an accelerator copies to and from beside computing."""

    name = "host"
    summary = "hold a tensor of an accelerator in pinned host memory, copied beside the computing"
    exactness = Exactness.BITWISE
    origin = "vDNN, SuperNeurons, Capuchin, swapping in TensorFlow"
    costs = "what of the copies is not hidden, and host memory; on request only; not tried on CUDA"
    when = (
        "Where a model on an accelerator needs less of its memory than holding and running again "
        "reach, or where its link to the host is faster than running again."
    )
    not_with = "Models on the CPU, whose memory it is already, and tensors below 64 KiB."
    tier = "host"
    argument, option = "host=True", "--host"

    @classmethod
    def is_for(cls, device: str) -> bool:
        """What is in host memory already has nothing to gain there."""
        return torch.device(device).type != "cpu"


@final
class Disk(AbstractMove):
    """Held in a file without a name, in a folder of the user's choice."""

    name = "disk"
    summary = "hold a tensor in a file, written behind forward and read ahead of backward"
    exactness = Exactness.BITWISE
    origin = "vDNN, SuperNeurons, swapping, ZeRO-Infinity (there: host memory or NVMe)"
    costs = "what of the transfer is not hidden, and the processor's share in it; on request only"
    when = (
        "Where the lowest budget is too high without it, or where running again costs more "
        "than the disk: `legroom tiers` and `legroom plan` tell."
    )
    not_with = (
        "`legroom plan --device`, because the disk of another machine is not known, and "
        "tensors below 64 KiB."
    )
    tier = "disk"
    argument, option = "disk=True", "--disk FOLDER"

    @classmethod
    def is_for(cls, device: str) -> bool:
        """A disk takes anything."""
        return True
