"""Where legroom keeps files between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where legroom keeps files between runs: `LEGROOM_CACHE_DIR`, or the user's cache folder.

    Raises:
        RuntimeError: No such variable is set and the user has no home.
    """
    if own := os.environ.get("LEGROOM_CACHE_DIR"):
        return Path(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "legroom"
    return Path.home() / ".cache" / "legroom"
