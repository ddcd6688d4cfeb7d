"""Denoising diffusion: a U-Net with GroupNorm, SiLU and attention, AdamW, moving average.

`paper` has the sizes of diffusers' unconditional example (64 pixels, 114 M parameters); `small`
has a quarter of the width.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from benchmarks.cases._case import Batches, Case, data_generator, pick_size, run

NUM_NOISE_STEPS = 1000


@dataclass(frozen=True)
class Size:
    """Shape of the model and of its batch; attention is on the last level but one."""

    channels: tuple[int, ...]
    pixels: int
    batch: int


SIZES = {
    "small": Size(channels=(32, 32, 64, 64, 128, 128), pixels=64, batch=12),
    "paper": Size(channels=(128, 128, 256, 256, 512, 512), pixels=64, batch=16),
}


def make_conv(inputs: int, outputs: int, *, stride: int = 1) -> nn.Conv2d:
    """A 3 x 3 convolution that keeps the edge, or halves it with a stride of two."""
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)


def make_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm of 32 groups, or of groups of four channels if there are few."""
    return nn.GroupNorm(min(32, channels // 4), channels)


def make_half(inputs: int, outputs: int) -> nn.Sequential:
    """Half of a block: norm, activation, convolution."""
    return nn.Sequential(make_norm(inputs), nn.SiLU(), make_conv(inputs, outputs))


class Attention(nn.Module):
    """Residual self-attention among the pixels, in heads of eight channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = make_norm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.output = nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features of the same shape."""
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        query, key, value = self.qkv(pixels).unflatten(2, (3, -1, 8)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        return x + self.output(mixed.transpose(1, 2).flatten(2)).transpose(1, 2).view_as(x)


class ResBlock(nn.Module):
    """Two convolutions around the time embedding, a shortcut, and attention if asked for."""

    def __init__(self, inputs: int, outputs: int, time: int, *, attention: bool = False) -> None:
        super().__init__()
        self.first = make_half(inputs, outputs)
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(time, outputs))
        self.second = make_half(outputs, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.attention = Attention(outputs) if attention else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Features of the same edge."""
        hidden = self.first(x) + self.time(time)[:, :, None, None]
        return self.attention(self.shortcut(x) + self.second(hidden))


class UNet(nn.Module):
    """Two blocks per level on the way down, three on the way up, every skip connected."""

    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        last = len(channels) - 1
        self.base = width = channels[0]
        time = 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.input = make_conv(3, width)
        self.down, self.up, skips = nn.ModuleList(), nn.ModuleList(), [width]
        for level, outputs in enumerate(channels):
            for inputs in (width, outputs):
                self.down.append(ResBlock(inputs, outputs, time, attention=level == last - 1))
                skips.append(outputs)
            width = outputs
            if level < last:
                self.down.append(make_conv(width, width, stride=2))
                skips.append(width)
        middle = [ResBlock(width, width, time, attention=attention) for attention in (True, False)]
        self.middle = nn.ModuleList(middle)
        for level, outputs in reversed(list(enumerate(channels))):
            for inputs in (width, outputs, outputs):
                joined = inputs + skips.pop()
                self.up.append(ResBlock(joined, outputs, time, attention=level == last - 1))
            width = outputs
            if level > 0:
                self.up.append(nn.Sequential(nn.Upsample(scale_factor=2), make_conv(width, width)))
        self.output = make_half(width, 3)

    def embed(self, steps: torch.Tensor) -> torch.Tensor:
        """Noise steps to sines and cosines, and through two linear layers."""
        half = self.base // 2
        powers = torch.arange(half, device=steps.device) / half
        angles = steps[:, None] * torch.exp(-math.log(10_000) * powers)
        return self.time(torch.cat([angles.sin(), angles.cos()], dim=1))

    def forward(self, x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        """Noisy images and their noise steps to the predicted noise."""
        time = self.embed(steps)
        x = self.input(x)
        skips = [x]
        for layer in self.down:
            x = layer(x, time) if isinstance(layer, ResBlock) else layer(x)
            skips.append(x)
        for layer in self.middle:
            x = layer(x, time)
        for layer in self.up:
            if isinstance(layer, ResBlock):
                x = layer(torch.cat([x, skips.pop()], dim=1), time)
            else:
                x = layer(x)
        return self.output(x)


def build(size: str = "small", *, seed: int = 0, **changes: Any) -> Case:
    """The U-Net, its moving average, its optimizer, and its training step."""
    shape = pick_size(SIZES, size, case="diffusion", changes=changes)
    torch.manual_seed(seed)
    model = UNet(shape.channels).train()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9999))
    average.requires_grad_(False)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.95, 0.999), weight_decay=1e-6
    )
    kept_signal = torch.cumprod(1 - torch.linspace(1e-4, 0.02, NUM_NOISE_STEPS), dim=0)

    generator = data_generator(seed)
    batches = [
        torch.rand(shape.batch, 3, shape.pixels, shape.pixels, generator=generator) * 2 - 1
        for _ in range(4)
    ]
    stream = Batches(batches)

    def compute_loss(images: torch.Tensor) -> torch.Tensor:
        noise = torch.randn_like(images)
        steps = torch.randint(NUM_NOISE_STEPS, (len(images),), device=images.device)
        signal = kept_signal[steps].view(-1, 1, 1, 1)
        noisy = signal.sqrt() * images + (1 - signal).sqrt() * noise
        return nn.functional.mse_loss(model(noisy, steps), noise)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = compute_loss(next(stream))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(model)
        return loss.detach()

    return Case(
        name="diffusion",
        size=size,
        model=model,
        optimizer=optimizer,
        step=step,
        loss=lambda: compute_loss(batches[0]),
        models=(model, average),
        optimizers=(optimizer,),
        rewind=stream.rewind,
        blocks=tuple(
            name for name, module in model.named_modules() if isinstance(module, ResBlock)
        ),
    )


if __name__ == "__main__":
    run(build)
