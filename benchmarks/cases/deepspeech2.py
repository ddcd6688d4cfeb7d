"""DeepSpeech 2 speech recognition: convolutions, bidirectional LSTMs, BatchNorm, CTC, AdamW.

`paper` is deepspeech.pytorch's model (5 layers of 1024) on 10 s of speech; `small` is a quarter
as wide, on 2.4 s.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.cases._case import Batches, Case, data_generator, pick_size, run

NUM_BINS = 161
NUM_LABELS = 29  # blank, apostrophe, space and the alphabet
BLANK = 0
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Size:
    """Shape of the model and of its batch; a frame is 10 ms."""

    channels: int
    num_layers: int
    width: int
    num_frames: int
    batch: int


SIZES = {
    "small": Size(channels=32, num_layers=5, width=256, num_frames=240, batch=8),
    "paper": Size(channels=32, num_layers=5, width=1024, num_frames=1000, batch=16),
}


class SequenceNorm(nn.BatchNorm1d):
    """BatchNorm over time and batch together."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Activations of shape (time, batch, width), normalised."""
        return super().forward(x.flatten(0, 1)).view_as(x)


class RecurrentLayer(nn.Module):
    """A normalised bidirectional LSTM whose two directions are added up."""

    def __init__(self, inputs: int, width: int, *, norm: bool) -> None:
        super().__init__()
        self.norm = SequenceNorm(inputs) if norm else nn.Identity()
        self.lstm = nn.LSTM(inputs, width, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Activations of shape (time, batch, inputs) to (time, batch, width)."""
        x, _ = self.lstm(self.norm(x))
        return x.unflatten(2, (2, -1)).sum(2)


class DeepSpeech2(nn.Module):
    """Two convolutions over the spectrogram, recurrent layers over time, a linear output."""

    def __init__(self, shape: Size) -> None:
        super().__init__()
        channels, width = shape.channels, shape.width
        self.conv = nn.Sequential(
            nn.Conv2d(1, channels, (41, 11), stride=(2, 2), padding=(20, 5)),
            nn.BatchNorm2d(channels),
            nn.Hardtanh(0, 20, inplace=True),
            nn.Conv2d(channels, channels, (21, 11), stride=(2, 1), padding=(10, 5)),
            nn.BatchNorm2d(channels),
            nn.Hardtanh(0, 20, inplace=True),
        )
        features = channels * -(-NUM_BINS // 4)
        self.layers = nn.ModuleList([RecurrentLayer(features, width, norm=False)])
        self.layers.extend(
            RecurrentLayer(width, width, norm=True) for _ in range(shape.num_layers - 1)
        )
        self.norm = SequenceNorm(width)
        self.output = nn.Linear(width, NUM_LABELS, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Spectrograms (batch, 1, bins, frames) to log-probabilities (time, batch, labels)."""
        x = self.conv(x).flatten(1, 2).permute(2, 0, 1).contiguous()
        for layer in self.layers:
            x = layer(x)
        return nn.functional.log_softmax(self.output(self.norm(x)), dim=-1)


def draw_batch(shape: Size, generator: torch.Generator) -> Batch:
    """Spectrograms, transcripts of about 14 letters a second, and the transcripts' lengths."""
    most = shape.num_frames // 7
    sounds = torch.randn(shape.batch, 1, NUM_BINS, shape.num_frames, generator=generator)
    letters = torch.randint(BLANK + 1, NUM_LABELS, (shape.batch, most), generator=generator)
    lengths = torch.randint(most // 2, most + 1, (shape.batch,), generator=generator)
    return sounds, letters, lengths


def build(size: str = "small", *, seed: int = 0, **changes: Any) -> Case:
    """DeepSpeech 2, its optimizer, and its training step."""
    shape = pick_size(SIZES, size, case="deepspeech2", changes=changes)
    torch.manual_seed(seed)
    model = DeepSpeech2(shape).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-4, weight_decay=1e-5)

    generator = data_generator(seed)
    batches = [draw_batch(shape, generator) for _ in range(2)]
    stream = Batches(batches)

    def compute_loss(
        sounds: torch.Tensor, letters: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        log_probs = model(sounds)
        times = torch.full_like(lengths, len(log_probs))
        return nn.functional.ctc_loss(
            log_probs, letters, times, lengths, blank=BLANK, zero_infinity=True
        )

    def step() -> torch.Tensor:
        sounds, letters, lengths = next(stream)
        optimizer.zero_grad()
        loss = compute_loss(sounds, letters, lengths)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 400.0)
        optimizer.step()
        return loss.detach()

    return Case(
        name="deepspeech2",
        size=size,
        model=model,
        optimizer=optimizer,
        step=step,
        loss=lambda: compute_loss(*batches[0]),
        models=(model,),
        optimizers=(optimizer,),
        rewind=stream.rewind,
        blocks=("conv", *(f"layers.{layer}" for layer in range(shape.num_layers))),
    )


if __name__ == "__main__":
    run(build)
