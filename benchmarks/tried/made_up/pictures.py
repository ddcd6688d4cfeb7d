"""Folders of small pictures: by class, flat, in pairs with masks, in two styles.

In go how many and of which size; out comes a function that writes them. A picture is a coloured
disk on a gradient, so that classes, masks and styles differ.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Write = Callable[[Path, np.random.Generator], None]
_COLOURS = np.array([[220, 60, 60], [60, 200, 80], [70, 90, 230], [210, 200, 60]])


def classes(*, train: int, val: int, pixels: int) -> Write:
    """`train/CLASS/NUMBER.png` and `val/CLASS/NUMBER.png`, so many of each of four classes."""

    def write(folder: Path, random: np.random.Generator) -> None:
        for split, number in (("train", train), ("val", val)):
            for label in range(len(_COLOURS)):
                for index in range(number):
                    picture, _ = disk(random, pixels, colour=label)
                    save(picture, folder / split / f"class{label}" / f"{index:03}.png")

    return write


def flat(number: int, *, pixels: int) -> Write:
    """`NUMBER.png`, all in one folder."""

    def write(folder: Path, random: np.random.Generator) -> None:
        for index in range(number):
            save(disk(random, pixels, colour=index % len(_COLOURS))[0], folder / f"{index:03}.png")

    return write


def berkeley(*, train: int, test: int, pixels: int) -> Write:
    """`images/train/NUMBER.jpg` and `images/test/NUMBER.jpg`, as BSDS300 unpacks."""

    def write(folder: Path, random: np.random.Generator) -> None:
        for split, number in (("train", train), ("test", test)):
            for index in range(number):
                picture, _ = disk(random, pixels, colour=index % len(_COLOURS))
                save(picture, folder / "images" / split / f"{index:03}.jpg")

    return write


def masks(number: int, *, pixels: int) -> Write:
    """`imgs/NUMBER.png` and `masks/NUMBER.png`; a mask is 1 where the disk is."""

    def write(folder: Path, random: np.random.Generator) -> None:
        for index in range(number):
            picture, inside = disk(random, pixels, colour=index % len(_COLOURS))
            save(picture, folder / "imgs" / f"{index:03}.png")
            save(inside.astype(np.uint8), folder / "masks" / f"{index:03}.png")

    return write


def two_styles(number: int, *, pixels: int) -> Write:
    """`train/A`, `train/B`, `test/A`, `test/B`: red disks and blue ones."""

    def write(folder: Path, random: np.random.Generator) -> None:
        for split in ("train", "test"):
            for style, colour in (("A", 0), ("B", 2)):
                for index in range(number):
                    picture, _ = disk(random, pixels, colour=colour)
                    save(picture, folder / split / style / f"{index:03}.jpg")

    return write


def disk(
    random: np.random.Generator, pixels: int, *, colour: int
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """A picture and where its disk is."""
    down, right = np.mgrid[0:pixels, 0:pixels]
    centre = random.uniform(0.3, 0.7, 2) * pixels
    radius = random.uniform(0.15, 0.3) * pixels
    inside = (down - centre[0]) ** 2 + (right - centre[1]) ** 2 < radius**2
    ground = (down + right)[..., None] * (120 / (2 * pixels)) + random.uniform(0, 60, (1, 1, 3))
    picture = np.where(inside[..., None], _COLOURS[colour], ground)
    picture = picture + random.normal(0, 6, picture.shape)
    return picture.clip(0, 255).astype(np.uint8), inside


def save(picture: NDArray[np.uint8], path: Path) -> None:
    """Write it in the format of its ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(path)
