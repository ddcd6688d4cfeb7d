"""WGAN with gradient penalty: several critic steps per generator step, double backward, two Adams.

`paper` is the CIFAR-10 recipe (32 pixels, 5 critic steps), `scaled` has five convolutions at 128
pixels, and `small` is `scaled` with a quarter of the channels, smaller kernels and 2 critic steps.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.cases._case import Batches, Case, data_generator, pick_size, run

NOISE_WIDTH = 128
PENALTY = 10.0


@dataclass(frozen=True)
class Size:
    """Shape of the models and of their batch; channels double as the edge halves, down to 4."""

    pixels: int
    channels: tuple[int, ...]
    kernel: int
    batch: int
    critic_steps: int


SIZES = {
    "small": Size(pixels=128, channels=(16, 32, 64, 128, 256), kernel=3, batch=48, critic_steps=2),
    "paper": Size(pixels=32, channels=(128, 256, 512), kernel=3, batch=64, critic_steps=5),
    "scaled": Size(
        pixels=128, channels=(64, 128, 256, 512, 1024), kernel=5, batch=64, critic_steps=5
    ),
}


class Generator(nn.Module):
    """A linear layer, then transposed convolutions that double the edge, with BatchNorm."""

    def __init__(self, shape: Size) -> None:
        super().__init__()
        widest = shape.channels[-1]
        edge = shape.pixels >> len(shape.channels)
        self.input = nn.Sequential(
            nn.Linear(NOISE_WIDTH, widest * edge * edge),
            nn.BatchNorm1d(widest * edge * edge),
            nn.ReLU(inplace=True),
            nn.Unflatten(1, (widest, edge, edge)),
        )
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(reversed(shape.channels)):
            layers += [
                nn.ConvTranspose2d(inputs, outputs, 2, stride=2),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            ]
        self.layers = nn.Sequential(*layers)
        self.output = nn.ConvTranspose2d(shape.channels[0], 3, 2, stride=2)

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        """Noise to pictures in [-1, 1]."""
        return torch.tanh(self.output(self.layers(self.input(noise))))


class Critic(nn.Module):
    """Convolutions that halve the edge; no BatchNorm, which would couple the samples."""

    def __init__(self, shape: Size) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise((3, *shape.channels)):
            layers += [
                nn.Conv2d(inputs, outputs, shape.kernel, stride=2, padding=shape.kernel // 2),
                nn.LeakyReLU(),
            ]
        self.layers = nn.Sequential(*layers, nn.Flatten())
        edge = shape.pixels >> len(shape.channels)
        self.output = nn.Linear(shape.channels[-1] * edge * edge, 1)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Pictures to a score each."""
        return self.output(self.layers(pictures)).squeeze(1)


def gradient_penalty(critic: nn.Module, real: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
    """How far the critic's slope is from one, between real and fake pictures."""
    share = torch.rand(len(real), 1, 1, 1, device=real.device)
    between = (share * real + (1 - share) * fake).requires_grad_()
    scores = critic(between)
    (slopes,) = torch.autograd.grad(scores.sum(), between, create_graph=True)
    return (slopes.flatten(1).norm(dim=1) - 1).square().mean()


def build(size: str = "small", *, seed: int = 0, **changes: Any) -> Case:
    """Critic and generator, their optimizers, and the step that trains both."""
    shape = pick_size(SIZES, size, case="wgan_gp", changes=changes)
    torch.manual_seed(seed)
    critic, generator = Critic(shape).train(), Generator(shape).train()
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.5, 0.9))
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.5, 0.9))

    data = data_generator(seed)
    batches = [
        torch.rand(shape.batch, 3, shape.pixels, shape.pixels, generator=data) * 2 - 1
        for _ in range(4)
    ]
    stream = Batches(batches)

    def draw_pictures() -> torch.Tensor:
        return generator(torch.randn(shape.batch, NOISE_WIDTH, device=batches[0].device))

    def compute_critic_loss(real: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            fake = draw_pictures()
        loss = critic(fake).mean() - critic(real).mean()
        return loss + PENALTY * gradient_penalty(critic, real, fake)

    def step() -> torch.Tensor:
        for real in itertools.islice(stream, shape.critic_steps):
            critic_optimizer.zero_grad()
            critic_loss = compute_critic_loss(real)
            critic_loss.backward()
            critic_optimizer.step()

        critic.requires_grad_(False)
        generator_optimizer.zero_grad()
        generator_loss = -critic(draw_pictures()).mean()
        generator_loss.backward()
        generator_optimizer.step()
        critic.requires_grad_(True)
        return critic_loss.detach()

    return Case(
        name="wgan_gp",
        size=size,
        model=critic,
        optimizer=critic_optimizer,
        step=step,
        loss=lambda: compute_critic_loss(batches[0]),
        models=(critic, generator),
        optimizers=(critic_optimizer, generator_optimizer),
        rewind=stream.rewind,
    )


if __name__ == "__main__":
    run(build)
