"""A citation graph in two formats: Cora's text files, and the pickles of Planetoid.

In goes a folder; out come files. Nodes cite mostly nodes of their own class, and have words that
are more frequent in their class.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_NAMES = ("Cases", "Genes", "Nets", "Odds", "Rewards", "Rules", "Theory")
_WORDS = 48


def cora(folder: Path, random: np.random.Generator) -> None:
    """`cora.content` (number, words, class) and `cora.cites` (cited, citing).

    Scripts test on nodes 500 to 1500, or train on what is left of 1600.
    """
    labels, words, edges = _graph(1800, random)
    numbers = random.permutation(10 * len(labels))[: len(labels)]
    with (folder / "cora.content").open("w") as content:
        for number, has, label in zip(numbers, words, labels, strict=True):
            content.write("\t".join([str(number), *map(str, has), _NAMES[label]]) + "\n")
    with (folder / "cora.cites").open("w") as cites:
        for cited, citing in edges:
            cites.write(f"{numbers[cited]}\t{numbers[citing]}\n")


def planetoid(folder: Path, random: np.random.Generator) -> None:
    """`Cora/raw/ind.cora.*`: 140 labelled nodes, 500 to validate, the last 300 to test."""
    from scipy.sparse import csr_matrix

    raw = folder / "Cora" / "raw"
    raw.mkdir(parents=True)
    train, known, number = 140, 700, 1000
    labels, words, edges = _graph(number, random)
    one_hot = np.eye(len(_NAMES), dtype=np.int32)[labels]
    words = words.astype(np.float32)
    neighbours: dict[int, list[int]] = {node: [] for node in range(number)}
    for cited, citing in edges.tolist():
        neighbours[cited].append(citing)
        neighbours[citing].append(cited)
    content = {
        "x": csr_matrix(words[:train]),
        "y": one_hot[:train],
        "allx": csr_matrix(words[:known]),
        "ally": one_hot[:known],
        "tx": csr_matrix(words[known:]),
        "ty": one_hot[known:],
        "graph": neighbours,
    }
    for name, value in content.items():
        (raw / f"ind.cora.{name}").write_bytes(pickle.dumps(value, protocol=4))
    indices = "".join(f"{node}\n" for node in range(known, number))
    (raw / "ind.cora.test.index").write_text(indices)


def _graph(
    number: int, random: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The class of each node, which words it has, and pairs of nodes without loops."""
    labels = random.integers(0, len(_NAMES), number)
    labels[: len(_NAMES)] = range(len(_NAMES))
    likely = random.random((len(_NAMES), _WORDS)) < 0.2
    words = (random.random((number, _WORDS)) < np.where(likely[labels], 0.5, 0.05)).astype(np.int64)
    words[:, 0] = 1  # no node is without a word: scripts divide by their number
    ordered = np.argsort(labels, kind="stable")
    place = np.argsort(ordered, kind="stable")
    near = ordered[(place[:, None] + random.integers(1, 60, (number, 2))) % number]
    pairs = np.stack([np.repeat(np.arange(number), 2), near.reshape(-1)], axis=1)
    return labels, words, np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
