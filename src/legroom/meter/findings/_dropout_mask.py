"""Finds the masks that dropout keeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from legroom.meter._profile import Finding, Profile, TensorUse
from legroom.meter.findings._base import AbstractFinder, num_elements, stash_of

_KERNELS = frozenset({"dropout", "native_dropout", "alpha_dropout", "feature_dropout", "bernoulli"})
_ATTENTION = "scaled_dot_product_attention"


@final
class DropoutMask(AbstractFinder):
    """One number per activation, to remember which were dropped: a bit would do."""

    name = "dropout-mask"
    title = "dropout masks, far larger than a bit per element"
    remedy = (
        "set the probability to 0 where you do not need it (attention dropout first: "
        "attn_pdrop, attention_dropout, attention_probs_dropout_prob), or run the block under "
        "torch.utils.checkpoint, which draws the mask again"
    )

    def find(self, profile: Profile) -> Iterable[Finding]:
        """Kept tensors that dropout itself made, beyond one bit per element."""
        masks = [t for t in stash_of(profile) if t.kernel in _KERNELS]
        inside = sum(t.operation == _ATTENTION for t in masks)
        where = f", {inside} of them inside attention" if inside else ""
        per_element = _bytes_per_element(masks)
        return self.report(
            profile,
            masks,
            f"{{count:mask}}{where}: {{bytes}} at {per_element} per element; "
            "the largest is {shape}",
            waste=lambda t: t.bytes - -(-num_elements(t) // 8),
        )


def _bytes_per_element(masks: list[TensorUse]) -> str:
    sizes = sorted({t.bytes // max(1, num_elements(t)) for t in masks})
    return " or ".join("1 byte" if size == 1 else f"{size} bytes" for size in sizes)
