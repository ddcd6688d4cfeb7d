"""ResNet-50 image classification (BatchNorm, ReLU): `transformers` model, SGD with momentum.

`paper` is the 224-pixel ImageNet recipe at batch 64; `small` has the same layers, half as wide.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from transformers import ResNetConfig, ResNetForImageClassification

from benchmarks.cases._case import (
    Batches,
    Case,
    SizeFieldError,
    data_generator,
    pick_size,
    run,
)

_ENDS = (3, 7, 13, 16)
"""After so many of ResNet-50's blocks its stages end."""
NUM_CLASSES = 1000


@dataclass(frozen=True)
class Size:
    """Shape of the model and of its batch.

    Attributes:
        num_blocks: Bottlenecks in all, spread over the stages as in ResNet-50.
    """

    stem_width: int
    stage_widths: tuple[int, ...]
    pixels: int
    batch: int
    num_blocks: int = 16


SIZES = {
    "small": Size(stem_width=32, stage_widths=(128, 256, 512, 1024), pixels=160, batch=16),
    "paper": Size(stem_width=64, stage_widths=(256, 512, 1024, 2048), pixels=224, batch=64),
}


def stage_depths(num_blocks: int) -> tuple[int, ...]:
    """How many blocks each stage has: (3, 4, 6, 3) of sixteen."""
    if num_blocks < len(_ENDS):
        raise SizeFieldError(
            f"num_blocks must be at least {len(_ENDS)}, one for each stage, got {num_blocks}"
        )
    ends = [0, *(round(num_blocks * end / _ENDS[-1]) for end in _ENDS)]
    return tuple(after - before for before, after in itertools.pairwise(ends))


def build(size: str = "small", *, seed: int = 0, **changes: Any) -> Case:
    """ResNet-50, its optimizer, and its training step."""
    shape = pick_size(SIZES, size, case="resnet50", changes=changes)
    depths = stage_depths(shape.num_blocks)
    torch.manual_seed(seed)
    config = ResNetConfig(
        embedding_size=shape.stem_width,
        hidden_sizes=list(shape.stage_widths),
        depths=list(depths),
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
            for stage, depth in enumerate(depths)
            for layer in range(depth)
        ),
    )


if __name__ == "__main__":
    run(build)
