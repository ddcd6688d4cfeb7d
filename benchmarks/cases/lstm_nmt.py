"""Translation with LSTMs and additive attention after GNMT: label smoothing, Adam, clipping at 5.

`paper` has NVIDIA's GNMT defaults (4 + 4 layers of 1024, batch 128 x 50); `small` narrows them.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.cases._case import Batches, Case, data_generator, pick_size, run

PADDING = 0
DROPOUT = 0.2
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Size:
    """Shape of the model and of its batch."""

    num_layers: int
    width: int
    vocabulary: int
    batch: int
    length: int


SIZES = {
    "small": Size(num_layers=4, width=256, vocabulary=4000, batch=32, length=50),
    "paper": Size(num_layers=4, width=1024, vocabulary=32000, batch=128, length=50),
}


class Encoder(nn.Module):
    """A bidirectional layer, then layers that are residual from the third on."""

    def __init__(self, num_layers: int, width: int) -> None:
        super().__init__()
        first = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        widths = [2 * width] + [width] * (num_layers - 2)
        rest = [nn.LSTM(inputs, width, batch_first=True) for inputs in widths]
        self.layers = nn.ModuleList([first, *rest])
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Embedded source words to their encodings."""
        for layer in self.layers:
            output, _ = layer(self.dropout(x))
            x = output + x if output.shape == x.shape else output
        return x


class AdditiveAttention(nn.Module):
    """Bahdanau's attention: a score is v . tanh(query + key), for all pairs of positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.zeros(width))
        self.score = nn.Linear(width, 1, bias=False)

    def forward(
        self, decoded: torch.Tensor, encoded: torch.Tensor, is_padding: torch.Tensor
    ) -> torch.Tensor:
        """The mean of the encodings that each decoded position attends to."""
        pairs = self.query(decoded).unsqueeze(2) + self.key(encoded).unsqueeze(1) + self.bias
        scores = self.score(torch.tanh(pairs)).squeeze(3)
        scores = scores.masked_fill(is_padding.unsqueeze(1), float("-inf"))
        return torch.softmax(scores, dim=2) @ encoded


class Decoder(nn.Module):
    """The first layer asks the attention; the others read its answer beside their input."""

    def __init__(self, num_layers: int, width: int) -> None:
        super().__init__()
        widths = [width] + [2 * width] * (num_layers - 1)
        self.layers = nn.ModuleList(nn.LSTM(inputs, width, batch_first=True) for inputs in widths)
        self.attention = AdditiveAttention(width)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(
        self, x: torch.Tensor, encoded: torch.Tensor, is_padding: torch.Tensor
    ) -> torch.Tensor:
        """Embedded target words to the features that predict the next ones."""
        x, _ = self.layers[0](self.dropout(x))
        context = self.attention(x, encoded, is_padding)
        for depth, layer in enumerate(self.layers[1:]):
            output, _ = layer(self.dropout(torch.cat([x, context], dim=2)))
            x = output + x if depth > 0 else output
        return x


class Translator(nn.Module):
    """Encoder and decoder with one shared embedding."""

    def __init__(self, shape: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width, padding_idx=PADDING)
        self.encoder = Encoder(shape.num_layers, shape.width)
        self.decoder = Decoder(shape.num_layers, shape.width)
        self.classifier = nn.Linear(shape.width, shape.vocabulary)
        for param in self.parameters():
            nn.init.uniform_(param, -0.1, 0.1)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Source and target words to the logits of the next target words."""
        encoded = self.encoder(self.embedding(source))
        decoded = self.decoder(self.embedding(target), encoded, source == PADDING)
        return self.classifier(decoded)


def draw_batch(shape: Size, generator: torch.Generator) -> Batch:
    """Source, target and next target words, padded after half of the length or later."""
    positions = torch.arange(shape.length)

    def draw_words() -> torch.Tensor:
        size = (shape.batch, shape.length)
        words = torch.randint(PADDING + 1, shape.vocabulary, size, generator=generator)
        ends = torch.randint(
            shape.length // 2, shape.length + 1, (shape.batch, 1), generator=generator
        )
        return words.masked_fill(positions >= ends, PADDING)

    source, target = draw_words(), draw_words()
    return source, target, nn.functional.pad(target[:, 1:], (0, 1), value=PADDING)


def build(size: str = "small", *, seed: int = 0, **changes: Any) -> Case:
    """The translator, its optimizer, and its training step."""
    shape = pick_size(SIZES, size, case="lstm_nmt", changes=changes)
    torch.manual_seed(seed)
    model = Translator(shape).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    generator = data_generator(seed)
    batches = [draw_batch(shape, generator) for _ in range(4)]
    stream = Batches(batches)

    def compute_loss(
        source: torch.Tensor, target: torch.Tensor, following: torch.Tensor
    ) -> torch.Tensor:
        logits = model(source, target)
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), following.flatten(), ignore_index=PADDING, label_smoothing=0.1
        )

    def step() -> torch.Tensor:
        source, target, following = next(stream)
        optimizer.zero_grad()
        loss = compute_loss(source, target, following)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        return loss.detach()

    layers = range(shape.num_layers)
    return Case(
        name="lstm_nmt",
        size=size,
        model=model,
        optimizer=optimizer,
        step=step,
        loss=lambda: compute_loss(*batches[0]),
        models=(model,),
        optimizers=(optimizer,),
        rewind=stream.rewind,
        blocks=(
            *(f"encoder.layers.{layer}" for layer in layers),
            *(f"decoder.layers.{layer}" for layer in layers),
            "decoder.attention",
        ),
    )


if __name__ == "__main__":
    run(build)
