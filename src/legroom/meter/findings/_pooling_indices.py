"""Finds the positions that max pooling keeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from legroom.meter._profile import Finding, Profile
from legroom.meter.findings._base import AbstractFinder, stash_of


@final
class PoolingIndices(AbstractFinder):
    """An int64 per output element says which input was largest; the window has a few places."""

    name = "pooling-indices"
    title = "int64 positions kept by max pooling"
    remedy = (
        "run the pooling alone under torch.utils.checkpoint(F.max_pool2d, x, 2, "
        "use_reentrant=False): its input is kept anyway, so only the positions go, for one more "
        "pooling in backward"
    )

    def find(self, profile: Profile) -> Iterable[Finding]:
        """Kept int64 tensors that a pooling operation made."""
        indices = [
            t
            for t in stash_of(profile)
            if t.dtype == "int64"
            and any("max_pool" in k.operation and k.field == "result1" for k in t.kept_by)
        ]
        return self.report(
            profile,
            indices,
            "{count:tensor} of positions, the largest {shape}, at 8 bytes per element: "
            "twice the float32 output that they belong to",
        )
