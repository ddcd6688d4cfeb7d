"""Vision transformer image classification: `transformers` model, AdamW, generated images.

`paper` is ViT-B/16 at 224 pixels and batch 64; `small` is ViT-Tiny at 192 pixels.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import ViTConfig, ViTForImageClassification

from benchmarks.cases._case import Batches, Case, data_generator, pick_size, run

NUM_CLASSES = 1000


@dataclass(frozen=True)
class Size:
    """Shape of the model and of its batch."""

    num_layers: int
    width: int
    num_heads: int
    pixels: int
    batch: int


SIZES = {
    "small": Size(num_layers=12, width=192, num_heads=3, pixels=192, batch=16),
    "paper": Size(num_layers=12, width=768, num_heads=12, pixels=224, batch=64),
}


def build(size: str = "small", *, seed: int = 0, **changes: Any) -> Case:
    """ViT with 16-pixel patches, its optimizer, and its training step."""
    shape = pick_size(SIZES, size, case="vit", changes=changes)
    torch.manual_seed(seed)
    config = ViTConfig(
        num_hidden_layers=shape.num_layers,
        hidden_size=shape.width,
        intermediate_size=4 * shape.width,
        num_attention_heads=shape.num_heads,
        image_size=shape.pixels,
        patch_size=16,
        num_labels=NUM_CLASSES,
    )
    model = ViTForImageClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.3)

    generator = data_generator(seed)
    batches = [
        (
            torch.randn(shape.batch, 3, shape.pixels, shape.pixels, generator=generator),
            torch.randint(NUM_CLASSES, (shape.batch,), generator=generator),
        )
        for _ in range(2)
    ]
    stream = Batches(batches)

    def compute_loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return model(pixel_values=images, labels=labels).loss

    def step() -> torch.Tensor:
        images, labels = next(stream)
        optimizer.zero_grad()
        loss = compute_loss(images, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return Case(
        name="vit",
        size=size,
        model=model,
        optimizer=optimizer,
        step=step,
        loss=lambda: compute_loss(*batches[0]),
        models=(model,),
        optimizers=(optimizer,),
        rewind=stream.rewind,
        blocks=tuple(f"vit.layers.{layer}" for layer in range(shape.num_layers)),
    )


if __name__ == "__main__":
    run(build)
