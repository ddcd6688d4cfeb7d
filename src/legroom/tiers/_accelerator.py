"""What the host tier asks of a device: queues of work, marks in them, copies.

In go copies and what they must wait for; the device does them in an order that respects both. CUDA
does it for real; tests put a device with a clock of its own in its place.
"""

from __future__ import annotations

import abc
from typing import Any, final

import torch

from legroom.tiers._layout import Layout


class AbstractAccelerator(abc.ABC):
    """A device whose work stands in queues, each in order, and among each other as marks say.

    A queue is what `compute`, `outward` and `inward` return.
    """

    @abc.abstractmethod
    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is on such a device."""

    @abc.abstractmethod
    def compute(self, device: torch.device) -> Any:
        """The queue that computing is put into just now."""

    @abc.abstractmethod
    def outward(self, device: torch.device) -> Any:
        """The queue of copies to the host."""

    @abc.abstractmethod
    def inward(self, device: torch.device) -> Any:
        """The queue of copies to the device."""

    @abc.abstractmethod
    def mark(self, queue: Any) -> Any:
        """A mark behind everything that stands in the queue."""

    @abc.abstractmethod
    def wait(self, queue: Any, mark: Any) -> None:
        """What is put into the queue from now on waits until that mark is reached."""

    @abc.abstractmethod
    def copy(self, queue: Any, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Put a copy of bytes into the queue."""

    @abc.abstractmethod
    def finish(self, queue: Any) -> None:
        """Wait, here and now, until nothing stands in the queue."""

    @abc.abstractmethod
    def new_host_bytes(self, num_bytes: int) -> torch.Tensor:
        """Host memory that the device can reach. RuntimeError where there is not that much."""

    @abc.abstractmethod
    def new_tensor(self, layout: Layout, device: torch.device) -> torch.Tensor:
        """Memory of the device, for what is computed from now on."""

    @abc.abstractmethod
    def describe(self) -> dict[str, str]:
        """Which devices there are; `where` is for people."""


@final
class Cuda(AbstractAccelerator):
    """CUDA devices: queues are streams, marks are events. Not tried by the authors."""

    def __init__(self) -> None:
        self._streams: dict[tuple[torch.device, str], Any] = {}

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is on such a device."""
        return tensor.device.type == "cuda"

    def compute(self, device: torch.device) -> Any:
        """The queue that computing is put into just now."""
        return torch.cuda.current_stream(device)

    def outward(self, device: torch.device) -> Any:
        """The queue of copies to the host."""
        return self._stream(device, "outward")

    def inward(self, device: torch.device) -> Any:
        """The queue of copies to the device."""
        return self._stream(device, "inward")

    def _stream(self, device: torch.device, direction: str) -> Any:
        key = (device, direction)
        if key not in self._streams:
            self._streams[key] = torch.Stream(device)
        return self._streams[key]

    def mark(self, queue: Any) -> Any:
        """A mark behind everything that stands in the queue."""
        return queue.record_event()

    def wait(self, queue: Any, mark: Any) -> None:
        """What is put into the queue from now on waits until that mark is reached."""
        queue.wait_event(mark)

    def copy(self, queue: Any, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Put a copy of bytes into the queue."""
        with torch.cuda.stream(queue):
            destination.copy_(source, non_blocking=True)

    def finish(self, queue: Any) -> None:
        """Wait, here and now, until nothing stands in the queue."""
        queue.synchronize()

    def new_host_bytes(self, num_bytes: int) -> torch.Tensor:
        """Host memory that the device can reach."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def new_tensor(self, layout: Layout, device: torch.device) -> torch.Tensor:
        """Memory of the device, for what is computed from now on."""
        return torch.empty_strided(layout.size, layout.stride, dtype=layout.dtype, device=device)

    def describe(self) -> dict[str, str]:
        """Which devices there are."""
        names = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
        return {"where": f"pinned, for {', '.join(names)}", "cuda": str(torch.version.cuda)}
