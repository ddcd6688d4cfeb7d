"""Train a small transformer on the characters of a text: an ordinary script that knows no legroom.

    python examples/train.py --steps 20

The tutorial (docs/tutorial.md) profiles, plans, runs and verifies it.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width, num_heads, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.attention(self.norm1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.num_heads, -1).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.project(mixed.transpose(1, 2).reshape(x.shape)))
        return x + self.dropout(self.down(functional.gelu(self.up(self.norm2(x)))))


class Transformer(nn.Module):
    def __init__(self, num_tokens, length, width=128, num_layers=4, num_heads=4, dropout=0.1):
        super().__init__()
        self.tokens, self.places = nn.Embedding(num_tokens, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, num_heads, dropout) for _ in range(num_layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_tokens)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, default=Path(__file__), help="what to learn")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    torch.manual_seed(0)
    text = options.text.read_text()
    characters = sorted(set(text))
    numbers = {character: number for number, character in enumerate(characters)}
    data = torch.tensor([numbers[character] for character in text])

    model = Transformer(len(characters), options.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, options.steps + 1):
        starts = torch.randint(len(data) - options.length, (options.batch_size, 1))
        batch = data[starts + torch.arange(options.length + 1)]
        loss = model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
