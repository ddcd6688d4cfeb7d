"""Why legroom lost where it did: what the tables cannot work out, written after looking into it.

By case and the peer's row, as `("gpt2", "checkpoint")`; what is no loss any more is taken out.
"""

from __future__ import annotations

NOTES: dict[tuple[str, str], str] = {}
