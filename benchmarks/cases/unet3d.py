"""3-D U-Net segmentation after MLPerf (InstanceNorm, in-place ReLU, skips): Dice + CE, SGD.

`paper` is the KiTS19 recipe, 128^3 crops at batch 2; `small` has a quarter of the filters on 64^3.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.cases._case import Batches, Case, data_generator, pick_size, run

NUM_CLASSES = 3


@dataclass(frozen=True)
class Size:
    """Shape of the model and of its batch."""

    filters: tuple[int, ...]
    edge: int
    batch: int


SIZES = {
    # Batch 2: at batch 1, torch on CPU leaves oneDNN for its slow convolution on many shapes.
    "small": Size(filters=(8, 16, 32, 64, 80), edge=64, batch=2),
    "paper": Size(filters=(32, 64, 128, 256, 320), edge=128, batch=2),
}


def make_conv(inputs: int, outputs: int, *, stride: int = 1) -> nn.Sequential:
    """Convolution, InstanceNorm and in-place ReLU."""
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.InstanceNorm3d(outputs, affine=True),
        nn.ReLU(inplace=True),
    )


class Down(nn.Module):
    """Two convolutions, the first of which may halve the edge."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 2) -> None:
        super().__init__()
        self.first = make_conv(inputs, outputs, stride=stride)
        self.second = make_conv(outputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features of half the edge, unless the stride is one."""
        return self.second(self.first(x))


class Up(nn.Module):
    """Doubles the edge, joins the skip connection, and convolves twice."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.upsample = nn.ConvTranspose3d(inputs, outputs, 2, stride=2)
        self.first = make_conv(2 * outputs, outputs)
        self.second = make_conv(outputs, outputs)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        """Features of the edge of `skip`."""
        x = torch.cat([self.upsample(x), skip], dim=1)
        return self.second(self.first(x))


class UNet3D(nn.Module):
    """Five levels down and five up again, joined level by level."""

    def __init__(self, filters: tuple[int, ...]) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(filters))
        self.input = Down(1, filters[0], stride=1)
        self.down = nn.ModuleList(Down(inputs, outputs) for inputs, outputs in pairs)
        self.bottleneck = Down(filters[-1], filters[-1])
        self.up = nn.ModuleList([Up(filters[-1], filters[-1])])
        self.up.extend(Up(outputs, inputs) for inputs, outputs in reversed(pairs))
        self.output = nn.Conv3d(filters[0], NUM_CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Volumes to a logit per voxel and class."""
        skips = [self.input(x)]
        for down in self.down:
            skips.append(down(skips[-1]))
        x = self.bottleneck(skips[-1])
        for up in self.up:
            x = up(x, skips.pop())
        return self.output(x)


def dice_and_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean of the cross entropy and of one minus the Dice score, background left out."""
    cross_entropy = nn.functional.cross_entropy(logits, labels)
    truth = nn.functional.one_hot(labels, NUM_CLASSES).movedim(-1, 1).float()[:, 1:]
    guess = torch.softmax(logits, dim=1)[:, 1:]
    voxels = (2, 3, 4)
    overlap = (guess * truth).sum(voxels)
    dice = (2 * overlap + 1e-6) / (guess.sum(voxels) + truth.sum(voxels) + 1e-6)
    return (cross_entropy + 1 - dice.mean()) / 2


def build(size: str = "small", *, seed: int = 0, **changes: Any) -> Case:
    """The 3-D U-Net, its optimizer, and its training step."""
    shape = pick_size(SIZES, size, case="unet3d", changes=changes)
    torch.manual_seed(seed)
    model = UNet3D(shape.filters).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)

    generator = data_generator(seed)
    volume = (shape.edge,) * 3
    batches = [
        (
            torch.randn(shape.batch, 1, *volume, generator=generator),
            torch.randint(NUM_CLASSES, (shape.batch, *volume), generator=generator),
        )
        for _ in range(2)
    ]
    stream = Batches(batches)

    def compute_loss(volumes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return dice_and_cross_entropy(model(volumes), labels)

    def step() -> torch.Tensor:
        volumes, labels = next(stream)
        optimizer.zero_grad()
        loss = compute_loss(volumes, labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(
        name="unet3d",
        size=size,
        model=model,
        optimizer=optimizer,
        step=step,
        loss=lambda: compute_loss(*batches[0]),
        models=(model,),
        optimizers=(optimizer,),
        rewind=stream.rewind,
        blocks=tuple(
            name for name, module in model.named_modules() if isinstance(module, Down | Up)
        ),
    )


if __name__ == "__main__":
    run(build)
