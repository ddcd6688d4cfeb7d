"""Finds attention masks that are made again for every layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import final

from legroom.meter._profile import Finding, Profile, TensorUse
from legroom.meter.findings._base import AbstractFinder, keeps_by, stash_of

_SOFTMAX = frozenset({"softmax", "safe_softmax"})


@final
class RepeatedMasks(AbstractFinder):
    """Each layer keeps its own mask of the same shape; they could share one."""

    name = "repeated-masks"
    title = "the same attention mask kept once per layer"
    remedy = (
        "make the mask once, before the first layer, in the type of the activations (a bool mask "
        "is turned into floats by every scaled_dot_product_attention), and hand the same tensor "
        "to all layers; a causal mask alone is is_causal=True"
    )

    def find(self, profile: Profile) -> Iterable[Finding]:
        """Masks of one shape and type, made by the same line: all but one are waste."""
        stash = stash_of(profile)
        maps = {
            (keep.module, t.shape[-2:]) for t in stash for keep in keeps_by(t, _SOFTMAX, {"result"})
        }
        groups: dict[tuple[object, ...], list[TensorUse]] = defaultdict(list)
        for tensor in stash:
            if _is_mask(tensor, maps):
                made = (tensor.shape, tensor.dtype, tensor.operation, tensor.file, tensor.line)
                groups[made].append(tensor)
        copies = [tensor for group in groups.values() for tensor in group[1:]]
        return self.report(
            profile, copies, "{count:mask} of {shape}, {bytes}, besides the first of each kind"
        )


def _is_mask(tensor: TensorUse, maps: set[tuple[str, tuple[int, ...]]]) -> bool:
    if any(keep.field == "attn_mask" for keep in tensor.kept_by):
        return True
    fills = keeps_by(tensor, {"masked_fill", "where"}, {"mask", "condition"})
    return len(tensor.shape) >= 2 and any((k.module, tensor.shape[-2:]) in maps for k in fills)
