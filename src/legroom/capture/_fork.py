"""Runs a part of a program in a copy of its process, of which nothing remains but the answer.

In goes a function, or the rest of a program; out come the messages that the copy sends back. The
copy has no effect outside of itself, see `_without_effects.py`. See Note [Fork].
"""

# Note [Fork]
# 1. A fork is the only copy of a Python program's whole state: counters, hooks, samplers and
#    iterators move in the copy and stay where they are in the program.
# 2. The first statement of a copy is `torch.set_num_threads(1)`: it has the forking thread alone,
#    and OpenMP would wait for those that it had before.
# 3. A copy ends by `os._exit`: no `finally`, no `__exit__` and no `atexit` of the program runs.
# 4. A thread that did not come along may have held a lock. A copy that has used no processor for a
#    while and sends nothing is taken to wait for ever, and is ended.
# 5. CUDA cannot be used in a copy once it is in use in the program, and macOS's libraries do not
#    survive a fork. `can_fork` says so; callers then do without, in the process itself.

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import pickle
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, final

import torch

from legroom.capture._without_effects import leave_no_effects
from legroom.errors import CaptureTimeError, CopyFailedError, LegroomError

_T = TypeVar("_T")
_SIZE = struct.Struct("<Q")
_IDLE_S = 30.0
"""A copy that used no processor for so long waits for something that will not come."""
_LOOK_S = 0.5
_PARENT_DEATH_SIGNAL = 1


def read_message(file: int) -> Message:
    """The one message that is sent through a pipe."""
    with open(file, "rb") as pipe:
        (size,) = _SIZE.unpack(pipe.read(_SIZE.size))
        message: Message = pickle.loads(pipe.read(size))
    return message


def can_fork() -> bool:
    """Whether a copy of this process could work; see Note [Fork], rule 5."""
    cuda: Any = torch.cuda
    return hasattr(os, "fork") and sys.platform != "darwin" and not cuda.is_initialized()


@final
@dataclass(frozen=True)
class Message:
    """What a copy sends: what it is about, and a value."""

    what: str
    value: Any


@final
class Sender:
    """The end of a pipe that sends messages: that of a copy, or of a process made for it.

    Args:
        file: Descriptor to write to.
    """

    def __init__(self, file: int) -> None:
        self.file = file

    def send(self, what: str, value: Any) -> None:
        """Send a message."""
        text = pickle.dumps(Message(what, value))
        _write(self.file, _SIZE.pack(len(text)) + text)

    def fail(self, error: BaseException) -> None:
        """Send an error of ours as it is, or another one in words."""
        if isinstance(error, LegroomError):
            with contextlib.suppress(Exception):  # what cannot be sent is sent in words
                self.send("error", (type(error), error.args, vars(error)))
                return
        self.send("failure", "".join(traceback.format_exception(error)))

    def end(self) -> NoReturn:
        """End at once; see Note [Fork], rule 3."""
        os._exit(0)


@final
class Receiver:
    """The end of a pipe that hears what another process sends, and ends that process.

    Args:
        process: The other's number.
        file: Descriptor to read from.
        scratch: The folder that it writes into; empty: none.
        idle_s: See Note [Fork], rule 4; None: it may wait as long as it likes.
    """

    def __init__(
        self, process: int, file: int, scratch: str = "", *, idle_s: float | None = _IDLE_S
    ) -> None:
        self._process, self._file, self._scratch = process, file, scratch
        self._idle_s = idle_s
        self._status: int | None = None
        self._is_closed = False

    def messages(self, *, patience_s: Callable[[], float | None] = lambda: None) -> Iterator[Any]:
        """What the copy sends, until it ends or `patience_s` of silence are over.

        Raises:
            LegroomError: The copy failed with it.
            CopyFailedError: It failed otherwise, was killed, or waits for something.
        """
        try:
            while (text := self._next(patience_s)) is not None:
                message: Message = pickle.loads(text)
                if message.what == "error":
                    kind, args, fields = message.value
                    error = kind.__new__(kind)
                    error.args = args
                    vars(error).update(fields)
                    raise error
                if message.what == "failure":
                    raise CopyFailedError(message.value.strip().splitlines()[-1], message.value)
                yield message
        finally:
            self.close()

    def close(self) -> None:
        """End the copy, if it has not ended. Safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self._file)
            if self._status is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._process, signal.SIGKILL)
                self.wait()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _next(self, patience_s: Callable[[], float | None]) -> bytes | None:
        head = self._read(_SIZE.size, patience_s)
        return None if head is None else self._read(_SIZE.unpack(head)[0], lambda: None)

    def _read(self, count: int, patience_s: Callable[[], float | None]) -> bytes | None:
        """So many bytes; None where the copy has ended or patience has."""
        parts = b""
        asked_s = busy_s = time.monotonic()
        used = self._ticks()
        while len(parts) < count:
            if select.select([self._file], [], [], _LOOK_S)[0]:
                part = os.read(self._file, min(count - len(parts), 1 << 20))
                if not part:
                    self._has_ended(bool(parts))
                    return None
                parts += part
                busy_s = time.monotonic()
                continue
            now_s, before, used = time.monotonic(), used, self._ticks()
            if used != before:
                busy_s = now_s
            patience = patience_s()
            if patience is not None and now_s - asked_s > patience:
                return None
            if self._idle_s is not None and used is not None and now_s - busy_s > self._idle_s:
                raise CopyFailedError("it waits for something that this process alone can give")
        return parts

    def wait(self) -> int:
        """Wait until the other process ends by itself; its status as the system has it."""
        if self._status is None:
            _, self._status = os.waitpid(self._process, 0)
        return self._status

    def _has_ended(self, is_torn: bool) -> None:
        status = self.wait()
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            raise CopyFailedError(f"it was ended by {name}", was_killed=True)
        if is_torn:
            raise CopyFailedError("it ended in the middle of a message")

    def _ticks(self) -> int | None:
        """Processor time that the copy has used; None where the system does not tell."""
        try:
            with open(f"/proc/{self._process}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            return int(fields[11]) + int(fields[12])
        except (OSError, IndexError, ValueError):
            return None


def split() -> Sender | Receiver:
    """Copy this process: returns twice, in the copy with its end and here with the other.

    Raises:
        OSError: The system has no room for a copy.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
            stream.flush()
    mine, others = os.pipe()
    scratch = tempfile.mkdtemp(prefix="legroom-")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of threads: see Note [Fork], rule 4
        process = os.fork()
    if process:
        os.close(others)
        return Receiver(process, mine, scratch)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the original
    end_with_parent()
    os.close(mine)
    leave_no_effects(scratch, keep=(others,))
    return Sender(others)


def end_with_parent() -> None:
    """Have the system end this process when the one that started it ends, where it can."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def in_copy(
    function: Callable[[Callable[[str], None]], _T],
    *,
    most_s: float | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> _T:
    """What a function returns in a copy of this process; nothing of what it does remains here.

    Args:
        function: Is given what it reports its progress to.
        most_s: How long it may take; the copy is ended then. None: as long as it likes.
        on_progress: Is told that progress.

    Raises:
        CaptureTimeError: It takes longer.
        LegroomError: The function raised it.
        CopyFailedError: It raised something else, or the copy was ended.
        OSError: The system has no room for a copy.
    """
    end = split()
    if isinstance(end, Sender):
        try:
            end.send("result", function(lambda text: end.send("progress", text)))
        except BaseException as error:
            end.fail(error)
        finally:
            end.end()
    asked_s = time.monotonic()
    ends_s = math.inf if most_s is None else asked_s + most_s

    def patience_s() -> float:
        return ends_s - asked_s

    for message in end.messages(patience_s=patience_s):
        if message.what == "result":
            result: _T = message.value
            return result
        if on_progress is not None:
            on_progress(message.value)
        asked_s = time.monotonic()
    if time.monotonic() >= ends_s:
        raise CaptureTimeError
    raise CopyFailedError("it ended without an answer")


def _write(file: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]
