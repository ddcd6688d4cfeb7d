"""What was measured so far, so that a benchmark that was interrupted goes on where it was.

In go a name and what the measurement depends on; out comes what was stored, if nothing of that has
changed. What a measurement depends on is the text of the code and the options, not the commit: a
change of the documentation or of a table does not undo hours of measuring.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, final

import torch

from benchmarks.processes import ROOT

FOLDER = ROOT / "benchmarks" / ".runs"


@final
class Store:
    """Answers by name, each with a fingerprint.

    Args:
        folder: Where they are; made when the first is stored.
        fresh: Find nothing that was there before.
    """

    def __init__(self, folder: Path = FOLDER, *, fresh: bool = False) -> None:
        self._folder, self._fresh = folder, fresh
        self._written: set[str] = set()

    def get(self, name: str, fingerprint: str) -> Any:
        """What is stored under the name; None if nothing is, or if it was measured otherwise."""
        file = self._file(name)
        if (self._fresh and name not in self._written) or not file.exists():
            return None
        record = json.loads(file.read_text())
        return record["answer"] if record["fingerprint"] == fingerprint else None

    def put(self, name: str, fingerprint: str, answer: Any) -> None:
        """Store; an interruption leaves either the old or the new."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._file(name)
        record = {"fingerprint": fingerprint, "answer": answer}
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(record))
        partial.replace(file)
        self._written.add(name)

    def _file(self, name: str) -> Path:
        safe = "".join(each if each.isalnum() or each in "._-" else "_" for each in name)
        return self._folder / f"{safe}.json"


def fingerprint(paths: Iterable[Path], *further: object) -> str:
    """A digest of the text below these paths, of PyTorch's version and of anything else."""
    digest = hashlib.blake2b(digest_size=12)
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    digest.update(json.dumps([torch.__version__, *further], default=str, sort_keys=True).encode())
    return digest.hexdigest()
