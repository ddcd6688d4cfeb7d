"""A case of a few kilobytes with everything that peers look for: blocks in a row, dropout."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.cases import Case
from benchmarks.cases._case import Batches

NUM_BLOCKS, WIDTH, BATCH = 4, 32, 64


class Block(nn.Module):
    """A residual block with dropout."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.narrow(torch.nn.functional.gelu(self.wide(x))))


class Model(nn.Module):
    """Blocks in a row, or with a connection past them, in which they are no chain."""

    def __init__(self, *, has_skips: bool, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(NUM_BLOCKS))
        self.has_skips = has_skips

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.blocks[0](x)
        x = first
        for block in self.blocks[1:]:
            x = block(x)
        return x + first if self.has_skips else x


def build_tiny(
    name: str = "tiny",
    size: str = "small",
    *,
    seed: int = 0,
    has_skips: bool = False,
    dropout: float = 0.1,
) -> Case:
    torch.manual_seed(seed)
    model = Model(has_skips=has_skips, dropout=dropout).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [torch.randn(BATCH, WIDTH) for _ in range(2)]
    stream = Batches(batches)

    def step() -> torch.Tensor:
        batch = next(stream)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(
        name=name,
        size=size,
        model=model,
        optimizer=optimizer,
        step=step,
        loss=lambda: model(batches[0]).square().mean(),
        models=(model,),
        optimizers=(optimizer,),
        rewind=stream.rewind,
        blocks=tuple(f"blocks.{number}" for number in range(NUM_BLOCKS)),
    )
