"""DistributedDataParallel in one process, batches from DataLoader workers, mixed precision."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    store = os.path.join(tempfile.mkdtemp(), "store")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    net = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))
    )
    optimizer = torch.optim.Adam(net.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(800, 64), torch.randn(800, 8))
    for inputs, targets in torch.utils.data.DataLoader(data, batch_size=100, num_workers=2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        optimizer.step()
    print("trained to the end")


if __name__ == "__main__":
    main()
