"""Why legroom lost where it did: what the tables cannot work out, written after looking into it.

By case and the peer's row, as `("gpt2", "checkpoint")`; what is no loss any more is taken out.
"""

from __future__ import annotations

NOTES: dict[tuple[str, str], str] = {
    ("resnet50", "torch-budget (0.2)"): (
        "Inductor lays convolutions out anew, which legroom has it leave alone, since it keeps "
        "copies of weights and inputs for backward then (tried by hand: with `layout_optimization` "
        "off, torch's own step is slower than legroom's)"
    ),
    ("deepspeech2", "torch-budget (0.2)"): (
        "At plain's peak to the byte it was planned again because of a scalar that the loop keeps; "
        "mended since"
    ),
    ("dlrm", "torch-budget (0.2)"): (
        "By 14 KB: a table of numbers by which `spelled-out` knows activations stays alive"
    ),
}
