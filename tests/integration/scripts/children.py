"""Trains in child processes that it starts itself: `children.py spawn|fork|Process|fails|none`."""

import sys

import torch
import torch.multiprocessing as mp
from torch import nn


def worker(rank: int) -> None:
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU())
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        loss = net(torch.randn(256, 64)).pow(2).mean()
        loss.backward()
        optimizer.step()
    print(f"worker {rank}: {loss.item():.9f}", flush=True)


def failing(rank: int) -> None:
    raise ValueError("the worker's own fault")


def main() -> None:
    how = sys.argv[1]
    if how == "spawn":
        mp.spawn(worker, nprocs=2)
    elif how == "fails":
        mp.spawn(failing, nprocs=1)
    elif how == "none":
        data = torch.utils.data.DataLoader(range(8), num_workers=2)
        print(sum(int(item) for item in data))
    else:
        process = mp.get_context("fork" if how == "fork" else "spawn").Process(
            target=worker, args=(0,)
        )
        process.start()
        process.join()
        sys.exit(3 if how == "Process" else 0)


if __name__ == "__main__":
    main()
