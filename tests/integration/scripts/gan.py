"""Two models and two optimizers; the generator steps once in three critic steps."""

import torch
from torch import nn

torch.manual_seed(0)

G = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))
D = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
g_opt = torch.optim.Adam(G.parameters(), lr=1e-4)
d_opt = torch.optim.Adam(D.parameters(), lr=1e-4)
for _ in range(5):
    for _ in range(3):
        real, noise = torch.randn(128, 32), torch.randn(128, 16)
        d_opt.zero_grad()
        d_loss = D(G(noise).detach()).mean() - D(real).mean()
        d_loss.backward()
        d_opt.step()
    g_opt.zero_grad()
    g_loss = -D(G(torch.randn(128, 16))).mean()
    g_loss.backward()
    g_opt.step()
    print(d_loss.item(), g_loss.item())
print("trained to the end")
