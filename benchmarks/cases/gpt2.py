"""GPT-2 language modelling with stock dropout: `transformers` model, AdamW, generated tokens.

`paper` is GPT-2 small at nanoGPT's micro-batch of 12 x 1024; `small` is a narrow one for a CPU, and
`deep` is `small` with 48 layers.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.cases._case import Batches, Case, data_generator, pick_size, run


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
    "deep": Size(num_layers=48, width=256, num_heads=4, vocabulary=4096, batch=8, length=256),
    "paper": Size(num_layers=12, width=768, num_heads=12, vocabulary=50257, batch=12, length=1024),
}


def build(size: str = "small", *, seed: int = 0, **changes: Any) -> Case:
    """GPT-2, its optimizer, and its training step."""
    shape = pick_size(SIZES, size, case="gpt2", changes=changes)
    torch.manual_seed(seed)
    config = GPT2Config(
        n_layer=shape.num_layers,
        n_embd=shape.width,
        n_head=shape.num_heads,
        n_positions=shape.length,
        vocab_size=shape.vocabulary,
        bos_token_id=shape.vocabulary - 1,
        eos_token_id=shape.vocabulary - 1,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config).train()
    model.loss_type = "ForCausalLM"  # the default anyway, which comes with a warning
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)

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
        optimizer.step()
        return loss.detach()

    return Case(
        name="gpt2",
        size=size,
        model=model,
        optimizer=optimizer,
        step=step,
        loss=lambda: compute_loss(batches[0]),
        models=(model,),
        optimizers=(optimizer,),
        rewind=stream.rewind,
        blocks=tuple(f"transformer.h.{layer}" for layer in range(shape.num_layers)),
    )


if __name__ == "__main__":
    run(build)
