"""Trains a small network whose width and batch are arguments; the subject of planning tests."""

import argparse

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    layers = [layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(options.steps):
        data = torch.randn(options.batch_size, 128)
        target = torch.randint(0, 10, (options.batch_size,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        print(number, loss.item())


if __name__ == "__main__":
    main()
