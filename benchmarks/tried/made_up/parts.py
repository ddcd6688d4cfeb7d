"""The list of everything that is made up: which part writes which folder.

In goes the folder of scripts; out come files below it. Each part has a random generator of its own,
seeded by its name, so that a part is the same whichever others are made.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from benchmarks.tried.made_up import digits, graphs, models, pictures, text

BESIDE = Path(__file__).parent / "beside"
SEED = 20260101

Make = Callable[[Path, np.random.Generator], None]


@final
@dataclass(frozen=True)
class Part:
    """Something that scripts read.

    Args:
        folder: Where it is, relative to the folder of scripts; nobody else writes there.
        make: Writes it into an empty folder.
    """

    folder: str
    make: Make


def _copy_of(name: str) -> Make:
    def make(folder: Path, _: np.random.Generator) -> None:
        without = shutil.ignore_patterns("__pycache__")
        shutil.copytree(BESIDE / name, folder, dirs_exist_ok=True, ignore=without)

    return make


PARTS: Mapping[str, Part] = {
    "stubs": Part("stubs", _copy_of("stubs")),
    "metrics": Part("data/metrics", _copy_of("metrics")),
    "mnist": Part("data/mnist", digits.idx_files(train=320, test=64)),
    "mnist-small": Part("data/mnist-small", digits.idx_files(train=256, test=100)),
    "mnist-tiny": Part("data/mnist-tiny", digits.idx_files(train=96, test=64)),
    "mnist-big": Part("data/mnist-big", digits.idx_files(train=60_000, test=64)),
    "cifar100": Part("data/cifar100-tiny", digits.cifar100_files(train=32, test=16)),
    "classes": Part("data/imagefolder", pictures.classes(train=8, val=2, pixels=64)),
    "classes-tiny": Part("data/imagefolder-tiny", pictures.classes(train=6, val=2, pixels=48)),
    "flat": Part("data/flat", pictures.flat(16, pixels=64)),
    "berkeley": Part("data/BSDS300", pictures.berkeley(train=12, test=4, pixels=96)),
    "masks": Part("data/seg", pictures.masks(16, pixels=64)),
    "two-styles": Part("data/monet2photo", pictures.two_styles(8, pixels=48)),
    "cora": Part("data/cora", graphs.cora),
    "planetoid": Part("data/planetoid", graphs.planetoid),
    "wikitext": Part("data/wikitext-2", text.word_files(train=640, valid=400, test=400)),
    "penn": Part("data/penn", text.word_files(train=640, valid=400, test=60)),
    "lines": Part("data/text", text.line_files),
    "characters": Part("data/chars", text.characters),
    "sentence-pairs": Part("data/glue", text.sentence_files),
    "hub": Part("data/hub", text.hub),
    "alpaca": Part("data/alpaca", text.instructions),
    "completions": Part("data/trl", text.completions),
    "preferences": Part("data/trl-dpo", text.preferences),
    "sine": Part("data/sine", text.sine),
    "models": Part("data/models", models.models),
}
"""By the name that `--only` takes."""


def make(name: str, folder: Path) -> None:
    """Write one part anew below the folder of scripts; what stood there is gone."""
    part = PARTS[name]
    target = folder / part.folder
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    part.make(target, np.random.default_rng([SEED, zlib.crc32(name.encode())]))
