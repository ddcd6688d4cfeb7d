"""Why legroom lost where it did: what the tables cannot work out, written after looking into it.

By case and the peer's row, as `("gpt2", "checkpoint")`; what is no loss any more is taken out.
"""

from __future__ import annotations

NOTES: dict[tuple[str, str], str] = {
    ("resnet50", "compile"): (
        "torch.compile lays convolutions out with channels last. legroom switches that off, for "
        "the copies at the ends of forward and backward: tried by hand with it on, this row was "
        "a little faster and took some 13 MiB more than predicted, which had to be planned around"
    ),
}
