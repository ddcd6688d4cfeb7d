"""A model under torch.compile."""

import torch
from torch import nn

net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
compiled = torch.compile(net, backend="aot_eager")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    loss = compiled(torch.randn(256, 64)).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
print("trained to the end")
