"""Four micro-batches, the loss in the loop, clipping, and a copy of the weights that follows."""

import copy
import hashlib

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())]
model = nn.Sequential(*layers, nn.Linear(64, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
average = None
for _ in range(6):
    optimizer.zero_grad()
    for _ in range(4):
        output = model(torch.randn(512, 64))
        loss = F.cross_entropy(output, torch.randint(0, 256, (512,))) / 4
        loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    average = average or copy.deepcopy(model)
    with torch.no_grad():
        for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs, 0.1)
    values = b"".join(param.detach().numpy().tobytes() for param in model.parameters())
    print(loss.item(), norm.item(), hashlib.sha256(values).hexdigest())
print("trained to the end")
