"""ResNet-50 image classification (BatchNorm, ReLU): `transformers` model, SGD with momentum.

`paper` is the 224-pixel ImageNet recipe at batch 64; `small` has the same layers, half as wide.
"""

from dataclasses import dataclass

import torch
from transformers import ResNetConfig, ResNetForImageClassification

from benchmarks.cases._case import Batches, Case, data_generator, pick_size, run

DEPTHS = (3, 4, 6, 3)
NUM_CLASSES = 1000


@dataclass(frozen=True)
class Size:
    """Shape of the model and of its batch."""

    stem_width: int
    stage_widths: tuple[int, ...]
    pixels: int
    batch: int


SIZES = {
    "small": Size(stem_width=32, stage_widths=(128, 256, 512, 1024), pixels=160, batch=16),
    "paper": Size(stem_width=64, stage_widths=(256, 512, 1024, 2048), pixels=224, batch=64),
}


def build(size: str = "small", *, seed: int = 0) -> Case:
    """ResNet-50, its optimizer, and its training step."""
    shape = pick_size(SIZES, size, case="resnet50")
    torch.manual_seed(seed)
    config = ResNetConfig(
        embedding_size=shape.stem_width,
        hidden_sizes=list(shape.stage_widths),
        depths=list(DEPTHS),
        layer_type="bottleneck",
        num_labels=NUM_CLASSES,
    )
    model = ResNetForImageClassification(config).train()
    learning_rate = 0.1 * shape.batch / 256
    optimizer = torch.optim.SGD(
        model.parameters(), lr=learning_rate, momentum=0.9, weight_decay=1e-4
    )

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
        optimizer.step()
        return loss.detach()

    return Case(
        name="resnet50",
        size=size,
        model=model,
        optimizer=optimizer,
        step=step,
        loss=lambda: compute_loss(*batches[0]),
        models=(model,),
        optimizers=(optimizer,),
        rewind=stream.rewind,
        blocks=tuple(
            f"resnet.encoder.stages.{stage}.layers.{layer}"
            for stage, depth in enumerate(DEPTHS)
            for layer in range(depth)
        ),
    )


if __name__ == "__main__":
    run(build)
