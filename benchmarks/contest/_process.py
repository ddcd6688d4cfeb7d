"""The parent's end of a contestant: starts the process, asks it, and notices when it is gone.

In go commands; out come its answers, or `{"status": ..., "why": ...}` if it died or took too long.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from benchmarks.processes import ROOT

MODULE = "benchmarks.contest.worker"


class Worker:
    """A contestant's process; a context manager that ends it.

    Attributes:
        is_alive: Whether it can still be asked.
    """

    def __init__(self, *, module: str = MODULE, env: dict[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile(mode="w+b")  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module],
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.is_alive = True

    def ask(self, do: str, *, timeout_s: float, **command: Any) -> dict[str, Any]:
        """What the process answers; it is ended if it does not in time."""
        assert self.is_alive, "asked after it was gone"
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"do": do, **command}) + "\n")
            self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            self.close()
            return {"status": "timeout", "why": f"{do} took more than {timeout_s:.0f} s"}
        if line is None:
            return self._died()
        return dict(json.loads(line))

    def close(self) -> None:
        """End the process. Safe to call twice."""
        self.is_alive = False
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        self._errors.close()

    def resident_bytes(self) -> int:
        """What the process holds now; 0 where that cannot be told."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return 1024 * int(line.split()[1])
        return 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError, OSError):  # closed while it was read
            for line in self._process.stdout:
                self._answers.put(line)
        self._answers.put(None)

    def _died(self) -> dict[str, Any]:
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines() or ["no output"]
        self.close()
        if code == -9:
            return {"status": "out of memory", "why": "killed (signal 9)"}
        what = f"signal {-code}" if code < 0 else f"exit code {code}"
        return {"status": "failed", "why": f"{what}: {said[-1]}"[:200].replace("|", "/")}
