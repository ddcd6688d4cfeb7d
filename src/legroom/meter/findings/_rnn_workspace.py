"""Finds the opaque buffers that fused recurrent kernels keep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from legroom.meter._profile import Finding, Profile
from legroom.meter.findings._base import AbstractFinder, keeps_by, stash_of
from legroom.units import format_share

_KERNELS = frozenset({"mkldnn_rnn_layer", "cudnn_rnn"})
_FIELDS = frozenset({"result3", "result4"})


@final
class RnnWorkspace(AbstractFinder):
    """Gates and cell states of every time step, in a layout that only the kernel knows."""

    name = "rnn-workspace"
    title = "opaque workspace kept by a fused recurrent kernel"
    remedy = (
        "split the layers into modules of their own and run each under torch.utils.checkpoint "
        "(use_reentrant=False), or cut long sequences and detach the state in between "
        "(truncated backpropagation)"
    )

    def find(self, profile: Profile) -> Iterable[Finding]:
        """Kept bytes without a type, by layer."""
        buffers = [
            t for t in stash_of(profile) if t.dtype == "uint8" and keeps_by(t, _KERNELS, _FIELDS)
        ]
        share = format_share(sum(t.bytes for t in buffers), profile.largest_stash_bytes)
        return self.report(
            profile,
            buffers,
            f"{{count:buffer}}, {{bytes}}: {share} of all that forward leaves for backward",
        )
