"""Text of made-up words: for language models, sentence pairs, named entities, instructions.

In goes a folder; out come files of one format each. Sentences are drawn from a small vocabulary, in
which some words follow others more often.
"""

from __future__ import annotations

import csv
import json
import pickle
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

WORDS = tuple("".join(pair) for pair in product(("ka", "lo", "mi", "su", "te", "vor"), repeat=2))
_AHEAD = 6


def sentence(random: np.random.Generator, length: int) -> list[str]:
    """So many words; each is one of the few that may follow the one before."""
    at = int(random.integers(len(WORDS)))
    steps = random.integers(1, _AHEAD, length)
    return [WORDS[(at + int(step)) % len(WORDS)] for step in np.cumsum(steps)]


def _said(random: np.random.Generator, shortest: int, longest: int) -> str:
    return " ".join(sentence(random, int(random.integers(shortest, longest + 1))))


def word_files(**numbers: int) -> Callable[[Path, np.random.Generator], None]:
    """`train.txt`, `valid.txt`, `test.txt` of about so many words, eight a line."""

    def write(folder: Path, random: np.random.Generator) -> None:
        for split, number in numbers.items():
            lines = [" ".join(sentence(random, 8)) for _ in range(number // 8)]
            if split == "train":
                lines[: len(WORDS) // 8 + 1] = _all_words()  # the vocabulary is the training text's
            (folder / f"{split}.txt").write_text("".join(f" {line} \n" for line in lines))

    return write


def _all_words() -> list[str]:
    return [" ".join(WORDS[start : start + 8]) for start in range(0, len(WORDS), 8)]


def line_files(folder: Path, random: np.random.Generator) -> None:
    """`train.txt` and `valid.txt`, a sentence a line."""
    for split, number in (("train", 64), ("valid", 16)):
        lines = [_said(random, 8, 14) for _ in range(number)]
        (folder / f"{split}.txt").write_text("".join(f"{line}\n" for line in lines))


def characters(folder: Path, random: np.random.Generator) -> None:
    """`train.bin`, `val.bin` (16-bit codes) and `meta.pkl` (which code is which character)."""
    drawn = {split: _said(random, 400, 400) for split in ("train", "val")}
    known = sorted(set("".join(drawn.values())))
    codes = {character: code for code, character in enumerate(known)}
    for split, said in drawn.items():
        np.array([codes[each] for each in said], dtype=np.uint16).tofile(folder / f"{split}.bin")
    meta = {"vocab_size": len(known), "itos": dict(enumerate(known)), "stoi": codes}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta, protocol=4))


def sentence_files(folder: Path, random: np.random.Generator) -> None:
    """Pairs as `*.csv`, named entities as `ner-*.json`, choices of an ending as `swag-*.json`."""
    for split, number in (("train", 32), ("validation", 8)):
        pairs = _pairs(random, number)
        with (folder / f"{split}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["sentence1", "sentence2", "label"], lineterminator="\n")
            writer.writeheader()
            writer.writerows(pairs)
        _write_lines(folder / f"ner-{split}.json", (_entities(random) for _ in range(number)))
        _write_lines(folder / f"swag-{split}.json", (_choice(random) for _ in range(number)))


def _pairs(random: np.random.Generator, number: int) -> list[dict[str, Any]]:
    """Two sentences; the label is 1 where the second has the words of the first."""
    pairs = []
    for index in range(number):
        first = sentence(random, int(random.integers(4, 11)))
        label = index % 2
        second = list(random.permutation(first)) if label else sentence(random, len(first))
        pair = {"sentence1": " ".join(first), "sentence2": " ".join(second), "label": label}
        pairs.append(pair)
    return pairs


def _entities(random: np.random.Generator) -> dict[str, list[str]]:
    """Words and a tag for each: a pair of words that begins with the first syllable is a place."""
    words = sentence(random, int(random.integers(4, 15)))
    tags = ["O"] * len(words)
    for place, word in enumerate(words):
        if word.startswith(WORDS[0][:2]):
            follows = place > 0 and tags[place - 1] != "O"
            tags[place] = "I-PLACE" if follows else "B-PLACE"
    return {"tokens": words, "ner_tags": tags}


def _choice(random: np.random.Generator) -> dict[str, str | int]:
    endings = {f"ending{number}": _said(random, 2, 5) for number in range(4)}
    return {
        "sent1": _said(random, 3, 6),
        "sent2": _said(random, 1, 2),
        **endings,
        "label": int(random.integers(4)),
    }


_CARD = """---
configs:
- config_name: mrpc
  data_files:
  - split: train
    path: train.jsonl
  - split: validation
    path: validation.jsonl
---
Made-up sentence pairs.
"""


def hub(folder: Path, random: np.random.Generator) -> None:
    """`nyu-mll/glue`, a local folder that `datasets` loads under the name that scripts ask for."""
    home = folder / "nyu-mll" / "glue"
    home.mkdir(parents=True)
    (home / "README.md").write_text(_CARD)
    for split, number in (("train", 48), ("validation", 16)):
        pairs = _pairs(random, number)
        rows = ({**pair, "idx": index} for index, pair in enumerate(pairs))
        _write_lines(home / f"{split}.jsonl", rows)


def instructions(folder: Path, random: np.random.Generator) -> None:
    """`train.jsonl` of instructions and outputs."""
    rows = (
        {"instruction": _said(random, 1, 2), "input": "", "output": _said(random, 1, 2)}
        for _ in range(32)
    )
    _write_lines(folder / "train.jsonl", rows)


def completions(folder: Path, random: np.random.Generator) -> None:
    """`train.jsonl` of texts."""
    _write_lines(folder / "train.jsonl", ({"text": _said(random, 3, 8)} for _ in range(24)))


def preferences(folder: Path, random: np.random.Generator) -> None:
    """`train.jsonl` of prompts, each with a chosen and a rejected completion."""
    names = ("prompt", "chosen", "rejected")
    rows = ({name: " " + _said(random, 1, 3) for name in names} for _ in range(24))
    _write_lines(folder / "train.jsonl", rows)


def sine(folder: Path, random: np.random.Generator) -> None:
    """`traindata.pt`: rows of a sine wave from different places on, doubles."""
    import torch

    starts = random.integers(-80, 80, (12, 1))
    torch.save(np.sin((np.arange(60) + starts) / 20.0), folder / "traindata.pt")


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
