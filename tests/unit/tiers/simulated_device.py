"""A device that exists nowhere: queues, marks, memory that is reused at once, and a clock.

Work is done in any order that queues and marks allow, as dice say; the clock says how long that
takes if the queues run side by side.
"""

import ctypes
import math

import torch

from legroom.tiers import AbstractAccelerator

_BYTES_PER_MS = 1000.0


class Mark:
    def __init__(self):
        self.reached_ms = None


class Queue:
    def __init__(self):
        self.work, self.now_ms = [], 0.0

    def can_go_on(self):
        if not self.work:
            return False
        kind, what, _ = self.work[0]
        return kind != "wait" or what.reached_ms is not None

    def go_on(self):
        kind, what, ms = self.work.pop(0)
        if kind == "wait":
            self.now_ms = max(self.now_ms, what.reached_ms)
        elif kind == "mark":
            what.reached_ms = self.now_ms
        else:
            self.now_ms += ms
            what()


class SimulatedDevice(AbstractAccelerator):
    """See above.

    Args:
        dice: Decide how much is done between two calls, and in which order. None: nothing before
            `finish`.
        ignored: A kind of wait that this device forgets, as `("compute", "outward")`: computing
            waits for a copy outward.

    Attributes:
        computing: The queue that computing is put into just now: `"compute"` or `"other"`.
    """

    def __init__(self, dice=None, *, num_bytes=1 << 20, ignored=None):
        self._memory = bytearray(num_bytes)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._free = {}
        self._used_bytes = 0
        self.queues = {name: Queue() for name in ("compute", "other", "outward", "inward")}
        self.computing = "compute"
        self.dice, self.ignored = dice, ignored
        self._names = {}

    # Memory: what was released is handed out again at once, as PyTorch does.

    def allocate(self, num_bytes):
        free = self._free.setdefault(num_bytes, [])
        if free:
            offset = free.pop()
        else:
            offset, self._used_bytes = self._used_bytes, self._used_bytes + num_bytes
        release = free.append

        class Region(ctypes.c_uint8 * num_bytes):
            def __del__(self):
                release(offset)

        return torch.frombuffer(Region.from_buffer(self._memory, offset), dtype=torch.uint8)

    def new_tensor(self, layout, device):
        flat = self.allocate(max(1, layout.num_bytes))
        bare = torch.empty(0, dtype=layout.dtype)
        return bare.set_(flat.untyped_storage(), 0, layout.size, layout.stride)

    def new_host_bytes(self, num_bytes):
        return torch.empty(num_bytes, dtype=torch.uint8)

    def owns(self, tensor):
        return self._start <= tensor.untyped_storage().data_ptr() < self._start + len(self._memory)

    # Queues.

    def compute(self, device):
        return self.queues[self.computing]

    def outward(self, device):
        return self.queues["outward"]

    def inward(self, device):
        return self.queues["inward"]

    def mark(self, queue):
        mark = Mark()
        (self._names[mark],) = [name for name, each in self.queues.items() if each is queue]
        self._add(queue, "mark", mark)
        return mark

    def wait(self, queue, mark):
        (name,) = [name for name, each in self.queues.items() if each is queue]
        if (name, self._names[mark]) != self.ignored:
            self._add(queue, "wait", mark)

    def copy(self, queue, destination, source):
        to, start, count = destination.data_ptr(), source.data_ptr(), source.numel()
        assert destination.numel() == count
        self._add(queue, "run", lambda: ctypes.memmove(to, start, count), count / _BYTES_PER_MS)

    def run(self, act, ms=1.0):
        """Compute something."""
        self._add(self.queues[self.computing], "run", act, ms)

    def fill(self, tensor, number):
        address, count = tensor.data_ptr(), tensor.untyped_storage().nbytes()
        self.run(lambda: ctypes.memset(address, number, count))

    def check(self, tensor, number, wrong):
        """Note when computing comes to the tensor and finds something else in it."""
        address, count = tensor.data_ptr(), tensor.numel() * tensor.dtype.itemsize
        expected = bytes([number]) * count

        def look():
            if ctypes.string_at(address, count) != expected:
                wrong.append(number)

        self.run(look)

    def _add(self, queue, kind, what, ms=0.0):
        queue.work.append((kind, what, ms))
        if self.dice is not None:
            for _ in range(self.dice.choice([0, 0, 1, 3])):
                self._go_on()

    def _go_on(self):
        ready = [queue for queue in self.queues.values() if queue.can_go_on()]
        if ready:
            queue = ready[0] if self.dice is None else self.dice.choice(ready)
            queue.go_on()
        return bool(ready)

    def finish(self, queue=None):
        """Do everything, or what one queue has; milliseconds until the last queue is empty."""
        while (queue is None or queue.work) and self._go_on():
            pass
        if queue is not None:
            return None
        assert not any(queue.work for queue in self.queues.values()), "queues wait for each other"
        return max(math.ceil(queue.now_ms) for queue in self.queues.values())

    def describe(self):
        return {"where": "nowhere"}


class Beside(SimulatedDevice):
    """Copies beside what this machine computes, in its own memory and in queues of their own.

    What is computed is done at once, copies when computing waits for them or dice say so: models
    can be trained with it.
    """

    def __init__(self, dice=None, **options):
        super().__init__(dice, **options)
        self.kept = []

    def owns(self, tensor):
        return tensor.device.type == "cpu"

    def new_tensor(self, layout, device):
        return torch.empty_strided(layout.size, layout.stride, dtype=layout.dtype)

    def copy(self, queue, destination, source):
        super().copy(queue, destination, source)
        self.kept.append((destination, source))  # what is forgotten must not be a crash

    def _add(self, queue, kind, what, ms=0.0):
        super()._add(queue, kind, what, ms)
        if not any(each.work for each in self.queues.values()):
            self.kept.clear()
        if queue is self.queues[self.computing]:
            self.finish(queue)
