"""Trains residual blocks whose middle is eight times as wide as what they read."""

import argparse

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(8 * width, width)

    def forward(self, value):
        return value + self.down(nn.functional.gelu(self.up(value)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    model = nn.Sequential(Block(64), Block(64), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(options.steps):
        data, target = torch.randn(2048, 64), torch.randint(0, 10, (2048,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        print(number, f"{loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
