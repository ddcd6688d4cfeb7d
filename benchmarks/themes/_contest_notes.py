"""Why legroom lost where it did: what the tables cannot work out, written after looking into it.

By case and the peer's row, as `("gpt2", "checkpoint")`; what is no loss any more is taken out.
"""

from __future__ import annotations

NOTES: dict[tuple[str, str], str] = {
    ("resnet50", "torch-budget (0.2)"): (
        "Inductor lays convolutions out anew, which legroom has it leave alone, since it keeps "
        "copies of weights and inputs for backward then. Without that, torch's own step takes "
        "0.98 of plain's time instead of 0.85 (medians of 9 steps each, one thread)"
    ),
}
