"""The Llama-style reference model whose peaks under PyTorch's own means are published.

In goes nothing; out come the model, its step of forward and backward, what others reach on it, and
what the same recipes reach here. Peaks count gradients, but neither parameters nor inputs. The
published description leaves SwiGLU's width open: 312 gives the published 12.4 MB of parameters.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn
from torch.profiler import ProfilerActivity, record_function
from torch.utils.checkpoint import checkpoint

from benchmarks.meter import allocator_peak_bytes

NUM_BLOCKS, WIDTH, HIDDEN, NUM_HEADS = 16, 128, 312, 4
VOCABULARY, BATCH, LENGTH = 500, 2, 256

EAGER, PER_BLOCK = "eager", "checkpoint every block"
SEGMENTS = {PER_BLOCK: 1, **{f"checkpoint segments of {n} blocks": n for n in (2, 4, 8)}}
"""Blocks that are recomputed together, by setting."""

PUBLISHED_MB = {
    EAGER: 85.9,
    PER_BLOCK: 18.3,
    "checkpoint segments of 2 blocks": 22.7,
    "checkpoint segments of 4 blocks": 31.4,
    "checkpoint segments of 8 blocks": 49.0,
    "torch budget 1.0": 67.1,
    "torch budget 0.60": 44.1,
    "torch budget 0.50": 41.5,
    "torch budget 0.40": 38.2,
    "torch budget 0.30": 46.3,
    "torch budget 0.25": 45.4,
    "torch budget 0.20": 25.3,
    "torch budget 0.15": 24.4,
    "torch budget 0.10": 35.7,
    "torch budget 0.05": 45.2,
    "torch budget 0.00": 85.9,
}
"""Peak by setting, in 10**6 bytes; `torch budget` is `activation_memory_budget`."""


class RMSNorm(nn.Module):
    """As Llama's code has it: from elementary operations."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """To unit mean square, times the weight."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    """Causal attention, then SwiGLU; each after a norm and around a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = RMSNorm(), RMSNorm()
        self.query, self.key, self.value, self.output = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block."""
        y = self.attention_norm(x)
        query, key, value = (
            each(y).unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Embedding, blocks, norm and head; `blocks_per_segment` of 0 recomputes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_BLOCKS))
        self.norm = RMSNorm()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, blocks_per_segment: int = 0) -> torch.Tensor:
        """Logits."""
        x = self.embedding(tokens)
        if blocks_per_segment == 0:
            for block in self.blocks:
                x = block(x)
        else:
            for first in range(0, NUM_BLOCKS, blocks_per_segment):
                segment = nn.Sequential(*self.blocks[first : first + blocks_per_segment])
                x = checkpoint(segment, x, use_reentrant=False)
        return self.head(self.norm(x))


class Reference:
    """The model with its batch and its step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Llama().train()
        self.tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
        self.labels = torch.randint(VOCABULARY, (BATCH, LENGTH))

    @property
    def uncounted_bytes(self) -> int:
        """Parameters and inputs: alive throughout, and not in the published peaks."""
        return sum(each.nbytes for each in (*self.model.parameters(), self.tokens, self.labels))

    def step(self, blocks_per_segment: int = 0) -> None:
        """Forward and backward, into gradients that are made anew."""
        for param in self.model.parameters():
            param.grad = None
        # Without a name for the logits, which would keep them alive throughout backward.
        F.cross_entropy(
            self.model(self.tokens, blocks_per_segment).flatten(0, 1), self.labels.flatten()
        ).backward()

    def measure_peak_bytes(self, blocks_per_segment: int = 0) -> int:
        """The allocator's highest sum over one step, in the way of the published figures."""
        self.step(blocks_per_segment)
        for param in self.model.parameters():
            param.grad = None
        with torch.profiler.profile(
            activities=[ProfilerActivity.CPU], profile_memory=True
        ) as profiler:
            with record_function("measured step"):
                self.step(blocks_per_segment)
        return allocator_peak_bytes(profiler, within="measured step")
