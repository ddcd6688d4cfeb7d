"""Mixture of experts (Mixtral, top 2 of 8, router loss): `transformers` model, AdamW.

Weights, gradients and optimizer state are most of its memory; `paper` is an eight-layer model of
214 M parameters, `small` has half of its layers and half of its width.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import MixtralConfig, MixtralForCausalLM

from benchmarks.cases._case import Batches, Case, data_generator, pick_size, run


@dataclass(frozen=True)
class Size:
    """Shape of the model and of its batch."""

    num_layers: int
    width: int
    feed_forward: int
    vocabulary: int
    batch: int
    length: int


SIZES = {
    "small": Size(num_layers=4, width=256, feed_forward=896, vocabulary=4000, batch=2, length=128),
    "paper": Size(
        num_layers=8, width=512, feed_forward=1792, vocabulary=32000, batch=8, length=1024
    ),
}


def build(size: str = "small", *, seed: int = 0, **changes: Any) -> Case:
    """Mixtral, its optimizer, and its training step."""
    shape = pick_size(SIZES, size, case="mixtral", changes=changes)
    torch.manual_seed(seed)
    config = MixtralConfig(
        num_hidden_layers=shape.num_layers,
        hidden_size=shape.width,
        intermediate_size=shape.feed_forward,
        num_attention_heads=8,
        num_key_value_heads=2,
        num_local_experts=8,
        num_experts_per_tok=2,
        vocab_size=shape.vocabulary,
        max_position_embeddings=shape.length,
        output_router_logits=True,
        use_cache=False,
    )
    model = MixtralForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)

    generator = data_generator(seed)
    batches = [
        torch.randint(shape.vocabulary, (shape.batch, shape.length), generator=generator)
        for _ in range(4)
    ]
    stream = Batches(batches)

    def compute_loss(tokens: torch.Tensor) -> torch.Tensor:
        return model(input_ids=tokens, labels=tokens).loss

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = compute_loss(next(stream))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return Case(
        name="mixtral",
        size=size,
        model=model,
        optimizer=optimizer,
        step=step,
        loss=lambda: compute_loss(batches[0]),
        models=(model,),
        optimizers=(optimizer,),
        rewind=stream.rewind,
        blocks=tuple(f"model.layers.{layer}" for layer in range(shape.num_layers)),
    )


if __name__ == "__main__":
    run(build)
