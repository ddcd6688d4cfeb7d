"""Why legroom lost where it did: what the tables cannot work out, written after looking into it.

By case and the peer's row, as `("gpt2", "checkpoint")`; what is no loss any more is taken out.
"""

from __future__ import annotations

NOTES: dict[tuple[str, str], str] = {
    ("dlrm", "torch-budget (0.2)"): (
        "State sets the peak, and at plain's own, to the byte, legroom runs the step as it is, "
        "with PyTorch's kernels: those of Inductor are faster here"
    ),
}
