"""What a way is: how one tensor gets from where it is made to where it is used again.

In goes a tensor with the operation that makes it; out comes what giving it back would cost, or
None where the way does not apply.
"""

from __future__ import annotations

import abc
import enum
from dataclasses import dataclass
from typing import Any, ClassVar, final

from legroom.capture import OperationInfo, TensorInfo

DEVICE = "device"
"""The tier on which everything is computed."""


class Exactness(enum.Enum):
    """How close to plain PyTorch the results are."""

    BITWISE = "bitwise"
    ROUNDING = "rounding"
    LOSSY = "lossy"

    def allows(self, other: Exactness) -> bool:
        """Whether something of that exactness may be used where this one was asked for."""
        ranks = list(Exactness)
        return ranks.index(other) <= ranks.index(self)


@final
@dataclass(frozen=True, slots=True)
class Saving:
    """What one way of giving one tensor back costs.

    Attributes:
        held_bytes: What is held on the device from its last use in forward until it is given back.
        put_ms: Time to put it away, in forward.
        get_ms: Time to give it back, in backward; counts only where the producer does not run.
        put_bytes: Scratch memory while it is put away, beside the tensor and what is held of it.
        get_bytes: Scratch memory while it is given back, beside those two.
        keeps_whole: Whether the tensor itself stays: nothing is given back, it is just there.
        runs_producer: Whether giving back runs the producer again. Then all of its outputs come
            back at once, it needs the producer's inputs, and takes the producer's time.
        readers_only: Whether what is given back serves only the operations of backward that read
            the tensor: it is not the tensor, and nothing may be made from it.
        about: What the operations of an encoding are told beside the tensor.
        tier: Where the bytes are: `"device"`, `"host"`, `"disk"`.
        moved_bytes: What goes to the tier and comes back, the tensor or its other form; in memory
            until it has left and from when it is called back.
        leave_ms: How long that occupies the tier, on the way out.
        return_ms: The same on the way back.
        waits: Whether the step waits for it both times; otherwise it happens behind what is
            computed.
    """

    held_bytes: int
    put_ms: float = 0.0
    get_ms: float = 0.0
    put_bytes: int = 0
    get_bytes: int = 0
    keeps_whole: bool = False
    runs_producer: bool = False
    readers_only: bool = False
    about: tuple[Any, ...] = ()
    tier: str = DEVICE
    moved_bytes: int = 0
    leave_ms: float = 0.0
    return_ms: float = 0.0
    waits: bool = False

    @property
    def is_encoded(self) -> bool:
        """Whether it is held in another form, or elsewhere."""
        return not (self.keeps_whole or self.runs_producer)

    @property
    def is_moved(self) -> bool:
        """Whether it is held elsewhere."""
        return self.tier != DEVICE


@final
@dataclass(frozen=True, slots=True)
class RunCost:
    """What one run of an operation takes.

    Attributes:
        workspace_bytes: Scratch memory while it runs, beside what it returns.
    """

    ms: float = 0.0
    workspace_bytes: int = 0


class AbstractTechnique(abc.ABC):
    """What a way and a variant say of themselves; `legroom ways` lists it.

    Attributes:
        name: As in `legroom plan --with NAME`.
        summary: What it does, in a clause.
        exactness: How close to plain PyTorch its results are.
        origin: Where it comes from: systems of the literature.
        costs: What it costs, in a clause.
        when: What it is for, in sentences.
        not_with: What it does not apply to and does not combine with, in sentences.
        error: How far off a lossy one is: norm of the difference over the norm, of numbers that are
            normally distributed. 0 for what is not lossy.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    exactness: ClassVar[Exactness]
    origin: ClassVar[str]
    costs: ClassVar[str]
    when: ClassVar[str] = ""
    not_with: ClassVar[str] = ""
    error: ClassVar[float] = 0.0


class AbstractWay(AbstractTechnique):
    """One way of giving tensors back; a description and a pure estimate, without state.

    Attributes:
        is_on_request: Whether it is used only where somebody asked for it.
    """

    is_on_request: ClassVar[bool] = False

    @classmethod
    def signatures(
        cls,
        tensor: TensorInfo,
        producer: OperationInfo,
        readers: tuple[OperationInfo, ...] = (),
    ) -> tuple[str, ...]:
        """What it runs for this tensor that forward and backward do not: to be timed."""
        return ()

    @classmethod
    @abc.abstractmethod
    def estimate(
        cls,
        tensor: TensorInfo,
        producer: OperationInfo,
        costs: tuple[RunCost, ...] = (),
        readers: tuple[OperationInfo, ...] = (),
    ) -> Saving | None:
        """What it costs to give this tensor back; None where the way does not apply.

        Args:
            costs: Of what `signatures` named.
            readers: The operations of backward that read the tensor.
        """
