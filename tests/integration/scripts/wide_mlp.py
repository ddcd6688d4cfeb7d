"""Trains a network whose stash is most of its memory, and prints each loss in full."""

import argparse
import sys

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--fail-at", type=int, default=-1, help="raise an exception in this step")
    parser.add_argument("--exit-at", type=int, default=-1, help="exit with code 3 in this step")
    parser.add_argument("--noise", action="store_true", help="draw from the system's own generator")
    options = parser.parse_args()
    layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))]
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(options.steps):
        data = torch.randn(options.batch_size, 64)
        target = torch.randint(0, 10, (options.batch_size,))
        if options.noise:
            own = torch.Generator()
            own.seed()
            data += torch.randn(data.shape, generator=own)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        print(number, loss.item().hex())
        if number == options.fail_at:
            raise ValueError("as it was told to")
        if number == options.exit_at:
            sys.exit(3)
    print("trained to the end")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
