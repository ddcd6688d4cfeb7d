"""Carries transfers out in a few threads, or in the calling one; see Note [Order of transfers].

In goes a transfer; whoever needs it to have ended waits for it here.
"""

# Note [Order of transfers]
# 1. What somebody waits for comes first, then reads, then writes; what is equal in that comes in
#    the order in which it was asked for. Chunks of one transfer run in several threads at once.
# 2. A read waits for the write of the same slot. Whoever waits for the read, waits for the write:
#    it comes first as well, so nothing urgent stands behind something that is not.
# 3. No transfer waits for anything but that one write, and no thread for anything but the system.
#    So whatever is asked for ends, or the system does not answer.
# 4. One lock guards every state. It may be taken again by the thread that has it, since finalizers
#    of tickets run anywhere; they change nothing that a call in between relies on. It is held for
#    microseconds, never during a transfer.
# 5. A system that does not answer is waited for as long as it takes, and that is said once. Whoever
#    waits looks up every second: a signal that comes right before a wait does not end it.
# 6. An exception in a thread belongs to its transfer; the thread goes on. Where there are no
#    threads to be had, or no memory for them, that is an error of the transfer that wanted them.
# 7. Without threads, a transfer is carried out when it is submitted. If that is interrupted, it
#    starts anew when somebody waits for it.

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from typing import final

from legroom.errors import TierError
from legroom.tiers._file import AbstractFile
from legroom.tiers._memory import Buffer
from legroom.tiers._ticket import mark_own_thread
from legroom.tiers._transfer import Transfer, carry_out

AWAITED, READ, WRITE = range(3)
"""Priorities; see Note [Order of transfers], rule 1."""

_CLOSING_SECONDS = 10.0
"""A thread that takes longer is left behind, with what it is at."""
_PAUSING_SECONDS = 2.0
_LOOKING_UP_SECONDS = 1.0
_LATE_SECONDS = 30.0
"""After so long it is said that the system does not answer."""

_log = logging.getLogger("legroom")


@final
class Engine:
    """The threads and what they have to do; see Note [Order of transfers].

    Args:
        num_threads: 0 for none: the calling thread does everything.

    Attributes:
        lock: Guards every state, the tier's included.
        is_closed: Whether it takes no more.
    """

    def __init__(self, file: AbstractFile, *, num_threads: int, chunk_bytes: int) -> None:
        self.lock = threading.RLock()
        self.is_closed = False
        self._file, self._num_threads, self._chunk_bytes = file, num_threads, chunk_bytes
        self._work = threading.Condition(self.lock)
        self._done = threading.Condition(self.lock)
        self._queue: list[tuple[int, int, Transfer]] = []
        self._places = itertools.count()
        self._threads: list[threading.Thread] = []
        self._own_buffer: Buffer | None = None
        self._num_running = 0
        self._is_paused = False

    @property
    def num_threads(self) -> int:
        """That are alive."""
        return sum(thread.is_alive() for thread in tuple(self._threads))

    def submit(self, transfer: Transfer, *, after: Transfer | None = None) -> None:
        """Have it carried out; `after` is the write that a read must wait for."""
        with self.lock:
            if after is not None and not after.is_done:
                after.followed_by = transfer
                return
            if after is not None and after.error is not None:
                transfer.stop(after.error)
                return
            self._enqueue(transfer)
        if not self._num_threads:
            self._carry_out_here(transfer)

    def wait(self, transfer: Transfer, *, what: str = "a tensor") -> None:
        """Until it has ended, well or not. An interruption changes nothing.

        Args:
            what: Is waited for, in a message where that takes long.
        """
        if not self._num_threads:
            self._carry_out_here(transfer)
            return
        late_s = time.monotonic() + _LATE_SECONDS
        with self.lock:
            self._hurry(transfer)
            while not transfer.is_done:
                self._done.wait(_LOOKING_UP_SECONDS)
                if not transfer.is_done and time.monotonic() > late_s:
                    late_s = math.inf
                    verb = "written" if transfer.is_write else "read"
                    _log.warning(
                        "the disk in %r has not answered for %g s: %s is being %s",
                        *(str(self._file.folder), _LATE_SECONDS, what, verb),
                    )

    def wait_after(self, write: Transfer, read: Transfer, *, what: str = "a tensor") -> None:
        """Until both have; see Note [Order of transfers], rule 2."""
        self.wait(write, what=what)
        self.wait(read, what=what)

    def close(self) -> bool:
        """Stop: what has not begun never does. Whether all threads have ended."""
        with self.lock:
            self.is_closed = True
            error = TierError("the tier was closed")
            for _, _, transfer in self._queue:
                transfer.stop(error)
                if transfer.followed_by is not None:
                    transfer.followed_by.stop(error)
            self._queue.clear()
            self._work.notify_all()
            self._done.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(_CLOSING_SECONDS)
        return self.num_threads == 0

    def pause(self) -> None:
        """Begin no chunk, and wait for those that have begun, but not for ever.

        For a fork: what the system writes into memory meanwhile may be lost to the parent.
        """
        with self.lock:
            self._is_paused = True
            self._done.wait_for(lambda: self._num_running == 0, timeout=_PAUSING_SECONDS)

    def resume(self) -> None:
        """Go on."""
        with self.lock:
            self._is_paused = False
            self._work.notify_all()

    def abandon(self) -> None:
        """Have no threads and no locks: in a child process there are none."""
        self.is_closed = True
        self.lock = threading.RLock()
        self._work = self._done = threading.Condition(self.lock)
        self._threads, self._queue = [], []

    def _enqueue(self, transfer: Transfer) -> None:
        if self.is_closed:
            transfer.stop(TierError("the tier was closed"))
            return
        if not self._num_threads:
            return
        try:
            self._start_threads()
        except TierError as error:
            transfer.stop(error)
            return
        heapq.heappush(self._queue, (transfer.priority, next(self._places), transfer))
        self._work.notify_all()

    def _hurry(self, transfer: Transfer) -> None:
        """Put it before what nobody waits for; also one that an interruption kept from the queue.

        It is then in the queue twice, which does no harm: who comes to the second finds nothing.
        """
        transfer.priority = AWAITED
        if transfer.has_more:
            self._enqueue(transfer)

    def _start_threads(self) -> None:
        if self.num_threads >= self._num_threads:
            return
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        while len(self._threads) < self._num_threads:
            name = f"legroom-tier-{len(self._threads)}"
            try:
                buffer = Buffer(self._chunk_bytes)
                thread = threading.Thread(target=self._run, args=(buffer,), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            except (OSError, RuntimeError, MemoryError) as error:
                self._threads = [thread for thread in self._threads if thread.is_alive()]
                if not self._threads:
                    raise TierError(f"the system gives the tier no thread: {error}") from error
                return

    def _run(self, buffer: Buffer) -> None:
        mark_own_thread()
        while True:
            with self.lock:
                while (job := self._next()) is None:
                    if self.is_closed:
                        return
                    self._work.wait()
            transfer, chunk = job
            error = None
            try:
                carry_out(transfer, chunk, self._file, buffer)
            except BaseException as raised:  # whatever it is, see rule 6
                error = raised
            with self.lock:
                self._finish(transfer, error)
            del job, transfer, error

    def _next(self) -> tuple[Transfer, int] | None:
        while self._queue and not self._is_paused:
            transfer = self._queue[0][2]
            if transfer.has_more:
                chunk = transfer.next_chunk
                self._num_running += 1
                transfer.num_running += 1
                transfer.next_chunk += 1
                return transfer, chunk
            heapq.heappop(self._queue)
        return None

    def _finish(self, transfer: Transfer, error: BaseException | None) -> None:
        self._num_running -= 1
        if self._is_paused:
            self._done.notify_all()
        transfer.num_running -= 1
        if error is not None:
            transfer.stop(error)
        if transfer.num_running == 0 and not transfer.has_more:
            transfer.is_done = True
            self._release_follower(transfer)
            self._done.notify_all()

    def _release_follower(self, transfer: Transfer) -> None:
        read, transfer.followed_by = transfer.followed_by, None
        if read is None or read.is_done:
            return
        if transfer.error is not None:
            read.stop(transfer.error)
        else:
            self._enqueue(read)

    def _carry_out_here(self, transfer: Transfer) -> None:
        """See Note [Order of transfers], rule 7."""
        with self.lock:
            if transfer.is_done:
                return
            try:
                self._own_buffer = self._own_buffer or Buffer(self._chunk_bytes)
                for chunk in range(transfer.num_chunks):
                    carry_out(transfer, chunk, self._file, self._own_buffer)
            except Exception as error:
                transfer.stop(error)
            else:
                transfer.stop()
