"""Small labelled images in the formats of two data sets: MNIST's idx files, CIFAR-100's pickles.

In go how many; out comes a function that writes them. An image is noise around a pattern of its
class, so that a network has something to learn.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
_AT_ONCE = 4096


def idx_files(*, train: int, test: int) -> Callable[[Path, np.random.Generator], None]:
    """Digits of 28×28 pixels below `MNIST/raw`, where torchvision looks for them."""

    def write(folder: Path, random: np.random.Generator) -> None:
        raw = folder / "MNIST" / "raw"
        raw.mkdir(parents=True)
        patterns = random.integers(0, 160, (10, 28, 28))
        for name, number in (("train", train), ("t10k", test)):
            labels = random.integers(0, 10, number).astype(np.uint8)
            pixels = np.concatenate(
                [
                    _around(patterns[labels[start : start + _AT_ONCE]], random)
                    for start in range(0, number, _AT_ONCE)
                ]
            )
            (raw / f"{name}-images-idx3-ubyte").write_bytes(idx_of(pixels))
            (raw / f"{name}-labels-idx1-ubyte").write_bytes(idx_of(labels))

    return write


def idx_of(values: Bytes) -> bytes:
    """Two zeros, the code of bytes (8), the number of dimensions, each size, the values."""
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    return head + values.tobytes()


def cifar100_files(*, train: int, test: int) -> Callable[[Path, np.random.Generator], None]:
    """Images of 32×32 pixels of 100 classes below `cifar-100-python`.

    Their digests are not the data set's: `torchvision_without_operators` has them not checked.
    """

    def write(folder: Path, random: np.random.Generator) -> None:
        python = folder / "cifar-100-python"
        python.mkdir(parents=True)
        patterns = random.integers(0, 160, (100, 3 * 32 * 32))
        for name, number in (("train", train), ("test", test)):
            labels = random.integers(0, 100, number)
            pixels = _around(patterns[labels], random)
            content = {"data": pixels, "fine_labels": [int(each) for each in labels]}
            (python / name).write_bytes(pickle.dumps(content, protocol=4))
        names = {"fine_label_names": [f"class {number}" for number in range(100)]}
        (python / "meta").write_bytes(pickle.dumps(names, protocol=4))

    return write


def _around(patterns: NDArray[np.int64], random: np.random.Generator) -> Bytes:
    return (patterns + random.integers(0, 96, patterns.shape)).astype(np.uint8)
