"""Times of operations, kept between runs in the user's cache folder.

In goes what was measured, line by line; out comes, in a later process on the same device, the same
again. One file for each surrounding that times depend on; see Note [Time cache].
"""

# Note [Time cache]
# 1. A file holds the times of one surrounding: device, threads, torch and its settings. Its name is
#    a hash of that, and its first line says it in words.
# 2. Each result is one line, appended in one write as soon as it is there: a process that is killed
#    loses nothing, two processes do not mix their lines, and the last line on a signature counts.
# 3. The file only grows, so that no process takes away what another has just added: a line that
#    cannot be read is overwritten by spaces where it stands, and a last line without an end gets
#    one. The latter may be a line that another process is about to write: it is read next time.
# 4. The cache is never needed: what goes wrong with it becomes a note, not an error.

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
from pathlib import Path
from typing import Any, final

import torch

from legroom._version import __version__
from legroom.cache import cache_folder
from legroom.capture import kernel_compiler
from legroom.meter._costs import OperationTime

_SCHEMA = "legroom.times/1"


def surroundings_of(device: torch.device) -> dict[str, str]:
    """What the time of an operation depends on beside its signature."""
    return {
        "device": device_name(device),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "kernels": kernel_compiler() or "none",
        "measures": "time and workspace of every operation",
        "torch": str(torch.__version__),
        "legroom": __version__,
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
    }


def device_name(device: torch.device) -> str:
    """The model of the processor or the card."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@final
class TimeCache:
    """The file for one surrounding; see Note [Time cache].

    Attributes:
        notes: What went wrong, in sentences.
    """

    def __init__(self, surroundings: dict[str, str]) -> None:
        self.notes: list[str] = []
        self._surroundings = surroundings
        self._path: Path | None = None

    def read(self) -> dict[str, OperationTime]:
        """Everything the file holds; empty where there is none. Opens it for `add`."""
        try:
            folder = cache_folder() / "operation_times"
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{_digest(self._surroundings)}.jsonl"
            if not path.exists():
                _append(path, self._header())
            content = path.read_bytes()
            unfinished = content[content.rfind(b"\n") + 1 :]
            if unfinished:
                _append(path, "\n")
            times, bad = _read_lines(content)
            _blank(path, bad)
        except (OSError, RuntimeError) as error:
            self._give_up(error)
            return {}
        self._path = path
        if bad:
            self.notes.append(f"{path}: what could not be read was left out (lines: {len(bad)})")
        return times

    def add(self, signature: str, time: OperationTime) -> None:
        """Write one measured time to the file at once."""
        if self._path is None:
            return
        try:
            _append(self._path, _line(signature, time))
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._path = None
        self.notes.append(
            f"times of operations are not kept for the next run: {error} "
            "(LEGROOM_CACHE_DIR names another folder)"
        )

    def _header(self) -> str:
        return json.dumps({"schema": _SCHEMA, **self._surroundings}) + "\n"


def _digest(surroundings: dict[str, str]) -> str:
    text = json.dumps([_SCHEMA, surroundings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _append(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _blank(path: Path, spans: list[tuple[int, int]]) -> None:
    if not spans:
        return
    with path.open("r+b") as file:
        for offset, length in spans:
            file.seek(offset)
            file.write(b" " * length)


def _line(signature: str, time: OperationTime) -> str:
    fields = {"signature": signature, "ms": time.ms, "workspace_bytes": time.workspace_bytes}
    return json.dumps(fields) + "\n"


def _read_lines(content: bytes) -> tuple[dict[str, OperationTime], list[tuple[int, int]]]:
    """The times, and offset and length of each finished line that holds none."""
    times: dict[str, OperationTime] = {}
    bad = []
    offset = 0
    for line in content.split(b"\n"):
        end = offset + len(line)
        try:
            if line.strip():
                _read_line(line, times)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            if end < len(content):
                bad.append((offset, len(line)))
        offset = end + 1
    return times, bad


def _read_line(line: bytes, times: dict[str, OperationTime]) -> None:
    fields = json.loads(line)
    if isinstance(fields, dict) and fields.get("schema") == _SCHEMA:
        return
    times[str(fields["signature"])] = _read_time(fields)


def _read_time(fields: dict[str, Any]) -> OperationTime:
    ms, workspace_bytes = float(fields["ms"]), int(fields["workspace_bytes"])
    if not (math.isfinite(ms) and ms >= 0 and workspace_bytes >= 0):
        raise ValueError(f"no time: {fields!r}")
    return OperationTime(ms, is_measured=True, workspace_bytes=workspace_bytes)
