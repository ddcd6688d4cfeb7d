"""Selective activation checkpointing: blocks are run again, all but their costly operations.

The list of operations that are kept is the usual one (torchtitan's, and what PyTorch's partitioner
calls compute-intensive), with what takes their place on a CPU.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any, final

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from benchmarks.cases import Case
from benchmarks.peers._blocks import checkpoint_blocks, require_blocks
from benchmarks.peers._peer import BITWISE, AbstractPeer, Entrant, Setting

_ATEN = torch.ops.aten
_PRODUCTS = (_ATEN.mm.default, _ATEN.addmm.default)
_KEPT = (
    *_PRODUCTS,
    _ATEN.bmm.default,
    _ATEN.baddbmm.default,
    _ATEN.convolution.default,
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    _ATEN.mkldnn_rnn_layer.default,
)


@final
class Selective(AbstractPeer):
    """Two policies: keep every costly result, or of matrix products every other one."""

    name = "selective"
    summary = "selective activation checkpointing, costly operations kept"
    exactness = "bitwise"
    rival = BITWISE
    settings = ({"keep": "all"}, {"keep": "every other product"})

    def apply(self, case: Case, setting: Setting) -> Entrant:
        """Wrap the blocks with the policy."""
        require_blocks(case)
        every = 1 if setting["keep"] == "all" else 2
        checkpoint_blocks(case, context_fn=functools.partial(_contexts, every))
        return Entrant(case)


def _contexts(every: int) -> Any:
    """Contexts of one block, whose products are counted from its beginning, as torchtitan does."""
    counts: Counter[bool] = Counter()

    def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        del args, kwargs
        is_kept = operation in _KEPT
        if operation in _PRODUCTS:
            counts[context.is_recompute] += 1
            is_kept = counts[context.is_recompute] % every == 0
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
