"""Llama language modelling (RMSNorm, SwiGLU, grouped heads, SDPA): `transformers` model, AdamW.

`paper` has the shape of Qwen2.5-0.5B, whose vocabulary makes the logits the largest tensors;
`small` is a six-layer one for a CPU.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.cases._case import Batches, Case, data_generator, pick_size, run


@dataclass(frozen=True)
class Size:
    """Shape of the model and of its batch."""

    num_layers: int
    width: int
    feed_forward: int
    num_heads: int
    num_key_value_heads: int
    vocabulary: int
    batch: int
    length: int


SIZES = {
    "small": Size(
        num_layers=6,
        width=256,
        feed_forward=1024,
        num_heads=8,
        num_key_value_heads=2,
        vocabulary=8192,
        batch=4,
        length=512,
    ),
    "paper": Size(
        num_layers=24,
        width=896,
        feed_forward=4864,
        num_heads=14,
        num_key_value_heads=2,
        vocabulary=151_936,
        batch=4,
        length=2048,
    ),
}


def build(size: str = "small", *, seed: int = 0, **changes: Any) -> Case:
    """Llama with tied embeddings, its optimizer, and its training step."""
    shape = pick_size(SIZES, size, case="llama", changes=changes)
    torch.manual_seed(seed)
    config = LlamaConfig(
        num_hidden_layers=shape.num_layers,
        hidden_size=shape.width,
        intermediate_size=shape.feed_forward,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_key_value_heads,
        max_position_embeddings=shape.length,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).train()
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
        name="llama",
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
