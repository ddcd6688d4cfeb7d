"""DLRM click prediction: embedding tables, two MLPs, pairwise interaction, dense Adam.

The tables with their dense gradients and optimizer state are nearly all of its memory; `paper`
has the 26 tables of Criteo-Kaggle, `small` the same ones cut off at 200,000 rows.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.cases._case import Batches, Case, data_generator, pick_size, run

NUM_DENSE = 13
# Distinct values of Criteo-Kaggle's 26 categorical features: 33.8 M rows.
# fmt: off
TABLE_ROWS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
# fmt: on


@dataclass(frozen=True)
class Size:
    """Shape of the model and of its batch."""

    max_rows: int
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    batch: int


SIZES = {
    "small": Size(max_rows=200_000, dim=16, bottom=(512, 256, 64), top=(512, 256), batch=2048),
    "paper": Size(max_rows=40_000_000, dim=16, bottom=(512, 256, 64), top=(512, 256), batch=2048),
}


def make_mlp(*widths: int) -> nn.Sequential:
    """Linear layers of these widths, each followed by a ReLU."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """An MLP under and an MLP over the products of all pairs of feature vectors."""

    def __init__(self, shape: Size, rows: tuple[int, ...]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, shape.dim, mode="sum") for n in rows)
        self.bottom = make_mlp(NUM_DENSE, *shape.bottom, shape.dim)
        num_vectors = len(rows) + 1
        num_pairs = num_vectors * (num_vectors - 1) // 2
        self.top = make_mlp(shape.dim + num_pairs, *shape.top)
        self.output = nn.Linear(shape.top[-1], 1)
        pairs = torch.tril_indices(num_vectors, num_vectors, offset=-1)
        self.register_buffer("pairs", pairs, persistent=False)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        """Dense features and one value per table to the logit of a click."""
        dense = self.bottom(dense)
        values = sparse.unsqueeze(-1).unbind(1)
        bags = [table(value) for table, value in zip(self.tables, values, strict=True)]
        vectors = torch.stack([dense, *bags], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        interaction = products[:, self.pairs[0], self.pairs[1]]
        return self.output(self.top(torch.cat([dense, interaction], dim=1))).squeeze(1)


def build(size: str = "small", *, seed: int = 0, **changes: Any) -> Case:
    """DLRM, its optimizer, and its training step."""
    shape = pick_size(SIZES, size, case="dlrm", changes=changes)
    torch.manual_seed(seed)
    rows = tuple(min(n, shape.max_rows) for n in TABLE_ROWS)
    model = DLRM(shape, rows).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    generator = data_generator(seed)
    batches = [
        (
            torch.rand(shape.batch, NUM_DENSE, generator=generator),
            torch.stack(
                [torch.randint(n, (shape.batch,), generator=generator) for n in rows], dim=1
            ),
            torch.randint(2, (shape.batch,), generator=generator).float(),
        )
        for _ in range(4)
    ]
    stream = Batches(batches)

    def compute_loss(
        dense: torch.Tensor, sparse: torch.Tensor, clicked: torch.Tensor
    ) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(model(dense, sparse), clicked)

    def step() -> torch.Tensor:
        dense, sparse, clicked = next(stream)
        optimizer.zero_grad()
        loss = compute_loss(dense, sparse, clicked)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(
        name="dlrm",
        size=size,
        model=model,
        optimizer=optimizer,
        step=step,
        loss=lambda: compute_loss(*batches[0]),
        models=(model,),
        optimizers=(optimizer,),
        rewind=stream.rewind,
    )


if __name__ == "__main__":
    run(build)
