"""BERT masked-language-model pre-training: `transformers` model, AdamW, 15 % masked tokens.

`paper` is BERT-large at length 512; `small` is a six-layer one for a CPU.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM

from benchmarks.cases._case import Batches, Case, data_generator, pick_size, run

MASK_TOKEN = 103  # as in BERT's own vocabulary; words begin after it
IGNORED_LABEL = -100


@dataclass(frozen=True)
class Size:
    """Shape of the model and of its batch."""

    num_layers: int
    width: int
    num_heads: int
    vocabulary: int
    batch: int
    length: int


SIZES = {
    "small": Size(num_layers=6, width=256, num_heads=4, vocabulary=4096, batch=8, length=256),
    "paper": Size(num_layers=24, width=1024, num_heads=16, vocabulary=30522, batch=8, length=512),
}


def draw_batch(shape: Size, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens with a mask in 15 % of the places, and the labels of those places."""
    words = torch.randint(
        MASK_TOKEN + 1, shape.vocabulary, (shape.batch, shape.length), generator=generator
    )
    masked = torch.rand(words.shape, generator=generator) < 0.15
    return words.masked_fill(masked, MASK_TOKEN), words.masked_fill(~masked, IGNORED_LABEL)


def build(size: str = "small", *, seed: int = 0, **changes: Any) -> Case:
    """BERT, its optimizer, and its training step."""
    shape = pick_size(SIZES, size, case="bert", changes=changes)
    torch.manual_seed(seed)
    config = BertConfig(
        num_hidden_layers=shape.num_layers,
        hidden_size=shape.width,
        intermediate_size=4 * shape.width,
        num_attention_heads=shape.num_heads,
        vocab_size=shape.vocabulary,
    )
    model = BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)

    generator = data_generator(seed)
    batches = [draw_batch(shape, generator) for _ in range(4)]
    stream = Batches(batches)

    def compute_loss(tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return model(input_ids=tokens, labels=labels).loss

    def step() -> torch.Tensor:
        tokens, labels = next(stream)
        optimizer.zero_grad()
        loss = compute_loss(tokens, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return Case(
        name="bert",
        size=size,
        model=model,
        optimizer=optimizer,
        step=step,
        loss=lambda: compute_loss(*batches[0]),
        models=(model,),
        optimizers=(optimizer,),
        rewind=stream.rewind,
        blocks=tuple(f"bert.encoder.layer.{layer}" for layer in range(shape.num_layers)),
    )


if __name__ == "__main__":
    run(build)
