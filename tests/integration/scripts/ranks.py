"""DistributedDataParallel on as many ranks as torchrun starts; a hash of parameters per step."""

import hashlib
import sys

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.GELU())]
    net = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    torch.manual_seed(rank)
    hashes = []
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(torch.randn(512, 64)), torch.randn(512, 1)).backward()
        optimizer.step()
        digest = hashlib.sha256()
        for param in net.parameters():
            digest.update(param.detach().numpy().tobytes())
        hashes.append(digest.hexdigest())
    with open(f"{sys.argv[1]}-{rank}.txt", "w") as file:
        file.write("\n".join(hashes))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
