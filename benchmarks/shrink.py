"""What does holding less cost in accuracy, and what does the loss of a language model take?

In goes a part, measured once: `loss` (the last layer and the loss of GPT-2, plain and fitted),
`blocks` (linear layers in chunks, plain and as a layer, and the floors of models with and without),
`characters` or `pictures` (a model trained with every tensor encoded that can be), `preset-NAME`
(a recipe of the literature against the planner, at the same measured peak); out comes one JSON
object on stdout. `benchmarks.run` writes the tables.
"""

from __future__ import annotations

import copy
import functools
import gc
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import legroom
from benchmarks import cases, engine
from benchmarks.exactness import measure_peak
from benchmarks.processes import print_answer
from legroom.layers import POINTWISE, ChunkedMLP
from legroom.meter import PeakGauge

VOCABULARY, WIDTH, BATCH, LENGTH = 50257, 768, 4, 512
"""GPT-2's."""
SEEDS = (0, 1, 2)
NUM_STEPS = 120
LAST_STEPS = 20
"""The final loss is the mean of so many."""
ENCODINGS = ("plain", "integer8", "integer4", "integer2", "fewbit4", "fewbit2", "fewbit1")
RECIPES = {
    "gist": ("resnet50", "bitwise"),
    "gist-lossy": ("resnet50", "lossy"),
    "tempo": ("bert", "bitwise"),
    "fewbit": ("vit", "lossy"),
    "actnn": ("resnet50", "lossy"),
    "echo": ("gpt2", "bitwise"),
}
"""By recipe: a case that is like those of its paper, and how exact the recipe is."""
_ROOM_BYTES = 512 * 1024
"""What fitting keeps free of its budget, so that the planner could take the recipe itself."""


# -- the loss of a language model ------------------------------------------------------------------


class LastLayer(nn.Module):
    """What a Hugging Face GPT-2 does after its last block."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=dtype)
        generator = torch.Generator().manual_seed(0)
        weights = torch.randn(VOCABULARY, WIDTH, generator=generator) * 0.02
        self.lm_head.weight.data.copy_(weights)

    def forward(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of the next token."""
        logits = self.lm_head(hidden)[:, :-1].flatten(0, 1)
        return functional.cross_entropy(logits, labels[:, 1:].flatten())


def measure_loss() -> dict[str, Any]:
    """Peak of the loss part beyond its gradients, and how far gradients are off from float64's."""
    torch.set_num_threads(1)
    rows: dict[str, Any] = {}
    _, exact = _loss_row(LastLayer(torch.float64), None)
    for name in ("plain", "fitted"):
        model = LastLayer()
        options = {"budget": "lowest", "exactness": "rounding"} if name == "fitted" else None
        row, gradients = _loss_row(model, options)
        row["gradient_errors"] = [
            float((mine.double() - theirs).norm() / theirs.norm())
            for mine, theirs in zip(gradients, exact, strict=True)
        ]
        rows[name] = row
        gc.collect()
    return {"rows": rows, "logits_bytes": BATCH * LENGTH * VOCABULARY * 4}


def _loss_row(
    model: LastLayer, options: dict[str, Any] | None
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(BATCH, LENGTH, WIDTH, generator=generator).to(model.lm_head.weight.dtype)
    hidden.requires_grad_()
    labels = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)
    leaves = [hidden, model.lm_head.weight]
    optimizer = torch.optim.SGD(leaves, lr=0.0)  # so that steps have an end
    call = model if options is None else legroom.fit(model.forward, optimizer=optimizer, **options)

    def step() -> None:
        optimizer.zero_grad()
        call(hidden, labels).backward()
        optimizer.step()

    for _ in range(4 if options is not None else 1):
        step()
    optimizer.zero_grad()
    gc.collect()
    gauge = PeakGauge(torch.device("cpu"))
    assert gauge.start(), "a profiler was running"
    step()
    reading = gauge.stop()
    assert reading is not None, "a profiler was running"
    grown_bytes = reading.peak_bytes - reading.opening_bytes
    gradients = [leaf.grad.detach() for leaf in leaves if leaf.grad is not None]
    gradient_bytes = sum(each.numel() * each.itemsize for each in gradients)
    return {
        "loss_part_bytes": grown_bytes - gradient_bytes,
        "gradient_bytes": gradient_bytes,
    }, gradients


# -- linear layers in chunks -----------------------------------------------------------------------

BLOCKS = {
    "2048 rows, 768 to 3072, GELU": (2048, 768, 3072, "gelu_tanh", False),
    "4096 rows, 256 to 1024, GELU": (4096, 256, 1024, "gelu_tanh", False),
    "2048 rows, 512 to 1408, SiLU and a gate": (2048, 512, 1408, "silu", True),
}
"""By name: rows, width, width of the middle, activation, whether there is a gate."""
FLOORS = ("gpt2", "llama")


class PlainBlock(nn.Module):
    """The layers of a block one after the other."""

    def __init__(self, block: ChunkedMLP) -> None:
        super().__init__()
        self.block = block

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """What the block computes."""
        block, activation = self.block, POINTWISE[self.block.activation].function
        hidden = block.up(value)
        if block.gate is None:
            return block.down(activation(hidden))
        return block.down(activation(block.gate(value)) * hidden)


def measure_blocks() -> dict[str, Any]:
    """Peaks, times and gradients of blocks; and how low plans go with and without chunks."""
    torch.set_num_threads(1)
    rows = {name: _block_row(*sizes) for name, sizes in BLOCKS.items()}
    return {"rows": rows, "floors": {name: _floors(name) for name in FLOORS}}


def _block_row(
    num_rows: int, width: int, hidden: int, activation: str, gated: bool
) -> dict[str, Any]:
    torch.manual_seed(0)
    chunked = ChunkedMLP(width, hidden, activation=activation, gated=gated, bias=not gated)
    value, given = torch.randn(num_rows, width, requires_grad=True), torch.randn(num_rows, width)
    leaves = [value, *chunked.parameters()]
    calls = {"plain": PlainBlock(chunked), "chunked": chunked}

    def gradients_of(call: nn.Module) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(call(value), leaves, given)

    exact_block = copy.deepcopy(chunked).double()
    exact_value = value.detach().double().requires_grad_()
    exact = torch.autograd.grad(
        PlainBlock(exact_block)(exact_value),
        [exact_value, *exact_block.parameters()],
        given.double(),
    )
    found: dict[str, Any] = {}
    for name, call in calls.items():
        gradients = gradients_of(call)
        errors = [
            float((mine.double() - theirs).norm() / theirs.norm())
            for mine, theirs in zip(gradients, exact, strict=True)
        ]
        del gradients
        gauge = PeakGauge(torch.device("cpu"))
        assert gauge.start(), "a profiler was running"
        gradients_of(call)
        reading = gauge.stop()
        assert reading is not None, "a profiler was running"
        found[name] = {
            "grown_bytes": reading.peak_bytes - reading.opening_bytes,
            "worst_gradient_error": max(errors),
        }
    steps = {name: functools.partial(gradients_of, call) for name, call in calls.items()}
    returned_bytes = given.nbytes + sum(each.nbytes for each in leaves)
    return {
        "hidden_bytes": num_rows * hidden * 4,
        "returned_bytes": returned_bytes,
        "contestants": found,
        "times_ms": engine.interleaved(steps),
    }


def _floors(name: str) -> dict[str, Any]:
    """How low plans go for a small model of transformers."""
    import transformers

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0}
    if name == "gpt2":
        config = transformers.GPT2Config(n_embd=128, n_layer=4, n_head=2, n_positions=256, **sizes)
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=256, **sizes,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    tokens = torch.randint(100, (16, 160))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    answer: dict[str, Any] = {}
    for key, without in (("without", ("chunked-mlp",)), ("with", ())):
        report = legroom.plan(
            step, budget="lowest", exactness="rounding", without=without, points=0, time_limit_s=10
        )
        assert report.chosen is not None, "a budget without a plan"
        answer |= {"plain_peak_bytes": report.plain_peak_bytes, "step_ms": report.step_ms}
        answer[key] = {
            "floor_peak_bytes": report.floor_peak_bytes,
            "added_ms": report.chosen.added_ms,
            "rewrites": report.rewrites,
        }
    return answer


# -- training with fewer bits ----------------------------------------------------------------------


class CharacterModel(nn.Module):
    """A small GPT on characters."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(len(_LETTERS), 64)
        self.places = nn.Embedding(48, 64)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 256, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(3)
        )
        self.norm = nn.LayerNorm(64)
        self.last = nn.Linear(64, len(_LETTERS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss of the next letter."""
        length = tokens.shape[1] - 1
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        value = self.tokens(tokens[:, :-1]) + self.places(torch.arange(length))
        for block in self.blocks:
            value = block(value, src_mask=mask, is_causal=True)
        logits = self.last(self.norm(value))
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return torch.relu(value + self.body(value))


class SmallResNet(nn.Module):
    """Three residual blocks on pictures of eight by eight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 32, 3, padding=1)
        self.blocks = nn.Sequential(*(_Block(32) for _ in range(3)))
        self.last = nn.Linear(32, 10)

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of the right class."""
        value = self.blocks(torch.relu(self.first(pictures))).mean((2, 3))
        return functional.cross_entropy(self.last(value), labels)


_LETTERS = "abcdefghijklmnopqrstuvwxyz ."
_WORDS = (
    "the cat sat on a mat and saw that its hat was flat so it went out to look for another one "
    "in the town where every house had a red door with a number"
).split()


def _sentences(generator: torch.Generator) -> tuple[torch.Tensor]:
    """Letters of random words in a fixed order of kinds: there is something to learn."""
    rows = []
    for _ in range(16):
        text, place = "", int(torch.randint(len(_WORDS), (1,), generator=generator))
        while len(text) < 49:
            text += _WORDS[place] + " "
            jump = int(torch.randint(3, (1,), generator=generator)) + 1
            place = (place + jump) % len(_WORDS)
        rows.append([_LETTERS.index(letter) for letter in text[:49]])
    return (torch.tensor(rows),)


def _pictures(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten fixed patterns, moved and noisy."""
    patterns = torch.randn(10, 1, 8, 8, generator=torch.Generator().manual_seed(99))
    labels = torch.randint(10, (64,), generator=generator)
    moved = [
        patterns[label].roll(tuple(torch.randint(3, (2,), generator=generator).tolist()), (1, 2))
        for label in labels
    ]
    pictures = torch.stack(moved)
    return pictures + 1.5 * torch.randn(pictures.shape, generator=generator), labels


_Batches = Callable[[torch.Generator], tuple[torch.Tensor, ...]]
MODELS: dict[str, tuple[type[nn.Module], _Batches]] = {
    "characters": (CharacterModel, _sentences),
    "pictures": (SmallResNet, _pictures),
}


def measure_convergence(name: str) -> dict[str, Any]:
    """Final losses of a model with each encoding, by seed."""
    torch.set_num_threads(1)
    rows = []
    for encoding in ENCODINGS:
        rows.append({"encoding": encoding, **_trained(name, encoding)})
        print(name, rows[-1], file=sys.stderr)
    return {"rows": rows}


def _trained(name: str, encoding: str) -> dict[str, Any]:
    finals, report = [], None
    for seed in SEEDS:
        build, batch_of = MODELS[name]
        torch.manual_seed(seed)
        model = build()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        handle = None
        if encoding != "plain":
            handle = legroom.fit(
                model,
                optimizer=optimizer,
                budget="lowest",
                exactness="lossy",
                ways=[encoding],
                time_limit_s=2.0,
            )
        generator = torch.Generator().manual_seed(1000 + seed)
        losses = []
        for _ in range(NUM_STEPS):
            optimizer.zero_grad()
            loss = model(*batch_of(generator))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        finals.append(sum(losses[-LAST_STEPS:]) / LAST_STEPS)
        if handle is not None:
            report = handle.report().to_dict()
            handle.undo()
    answer: dict[str, Any] = {"final_losses": finals}
    if report is not None:
        held = report["ways"].get(encoding, {"tensors": 0, "bytes": 0})
        answer |= {"gradient_error": report["gradient_error"], "encoded": held}
    return answer


# -- recipes of the literature against the planner -------------------------------------------------


def measure_recipe(name: str) -> dict[str, Any]:
    """Step times, taking turns: plain, the recipe, and the planner within the recipe's peak."""
    torch.set_num_threads(1)
    case_name, exactness = RECIPES[name]
    runs = {each: cases.build(case_name) for each in ("plain", "recipe", "planner")}
    for case in runs.values():
        for _ in range(engine.WARMUP_STEPS):
            case.step()
    peak_bytes = measure_peak(runs["plain"].step)
    handles = {}
    options: dict[str, Any] = {"budget": "lowest", "preset": name}
    for contestant in ("recipe", "planner"):
        case = runs[contestant]
        gc.collect()  # what others left behind is not this one's
        handles[contestant] = engine.fit_case(case, exactness=exactness, **options)
        for _ in range(engine.MEASURED_STEPS):
            case.step()
        measured_bytes = handles[contestant].report().measured_peak_bytes
        assert measured_bytes is not None, "no step was measured"
        options = {"budget": measured_bytes + _ROOM_BYTES}
    times = engine.interleaved({each: case.step for each, case in runs.items()})
    return {
        "case": case_name,
        "exactness": exactness,
        "plain_peak_bytes": peak_bytes,
        "times_ms": times,
        "reports": {each: handle.report().to_dict() for each, handle in handles.items()},
    }


SINGLE_PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "loss": measure_loss,
    "blocks": measure_blocks,
    **{name: functools.partial(measure_convergence, name) for name in MODELS},
    **{f"preset-{name}": functools.partial(measure_recipe, name) for name in RECIPES},
}


if __name__ == "__main__":
    print_answer({}, SINGLE_PARTS)
