"""Source lines: which line of whose code, in which module, is asking PyTorch for something.

In goes the running stack; out comes a small number for a `Site`. A site is the innermost line
outside PyTorch (so a line of a model library counts), and beside it the innermost line of the
user's own project.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

import torch

_PLUMBING, _LIBRARY, _USER = range(3)

_SITE_PACKAGES = ("site-packages", "dist-packages")
_LEGROOM = str(Path(__file__).resolve().parent.parent)
_TORCH = str(Path(torch.__file__).resolve().parent)
_STDLIB = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})


@dataclass(frozen=True, slots=True)
class Site:
    """One place in the source, as seen from one module of the model.

    Attributes:
        file: The file of the innermost line outside PyTorch; `""` when there is none.
        line: Its number, from 1.
        function: The function that the line is in.
        module: Path of the innermost module that was running, `"transformer.h.0.mlp"`.
        user_file: The file of the innermost line in the user's own project.
        user_line: Its number.
        user_function: The function that it is in.
    """

    file: str
    line: int
    function: str
    module: str
    user_file: str
    user_line: int
    user_function: str


_Place = tuple[CodeType, int]


def _place(frame: FrameType | None) -> _Place | None:
    return (frame.f_code, frame.f_lineno) if frame is not None else None


def _named(frame: FrameType | None) -> tuple[str, int, str]:
    if frame is None:
        return "", 0, ""
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


class SiteTable:
    """Numbers for sites; the same place gets the same number."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[_Place | None, _Place | None, str], int] = {}
        self._sites: list[Site] = []
        self._rank: dict[CodeType, int] = {}

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every site seen so far, at its number."""
        return tuple(self._sites)

    def here(self, module: str) -> int:
        """The number of the place that the caller's callers are at.

        Cost: one dictionary look-up per stack frame up to the first line of the user's project.
        """
        frame: FrameType | None = sys._getframe(1)
        ranks = self._rank
        inner: FrameType | None = None
        while frame is not None:
            code = frame.f_code
            rank = ranks.get(code)
            if rank is None:
                rank = ranks[code] = _rank_of(code.co_filename)
            if rank != _PLUMBING and inner is None:
                inner = frame
            if rank == _USER:
                break
            frame = frame.f_back
        outer = frame or inner
        key = (_place(inner), _place(outer), module)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._sites)
            self._sites.append(Site(*_named(inner), module, *_named(outer)))
        return number


def is_model_code(filename: str) -> bool:
    """Whether a line of this file can be a site: not PyTorch, not legroom, not Python itself."""
    return _rank_of(filename) != _PLUMBING


def line_of(file: str, number: int) -> str:
    """A source line as people read it: `"model.py:12"`."""
    return f"{short_name(file)}:{number}"


def line_of_caller() -> str:
    """The innermost line of the user's own project that is running; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else line_of(frame.f_code.co_filename, frame.f_lineno)


def short_name(file: str) -> str:
    """The file as people name it: within the project, or within its installed package."""
    for marker in ("site-packages", "dist-packages"):
        _, found, rest = file.rpartition(f"{os.sep}{marker}{os.sep}")
        if found:
            return rest
    inside = os.path.relpath(file) if os.path.isabs(file) else file
    return file if inside.startswith(os.pardir) else inside


def is_legroom_code(filename: str) -> bool:
    """Whether the file is part of legroom itself."""
    return filename.startswith(_LEGROOM)


def is_user_code(filename: str) -> bool:
    """Whether the file belongs to the user's project rather than to an installed library."""
    return _rank_of(filename) == _USER


def _rank_of(filename: str) -> int:
    if filename.startswith("<"):
        # <frozen runpy> and what fx has generated (<eval_with_key>.12), but also <string> and
        # notebook cells (<ipython-input-3-…>).
        return _PLUMBING if filename.startswith(("<frozen", "<eval_with_key>")) else _USER
    if filename.startswith((_TORCH, _LEGROOM)):
        return _PLUMBING
    if any(part in filename for part in _SITE_PACKAGES):
        return _LIBRARY
    if filename.startswith(_STDLIB):
        return _PLUMBING
    return _USER
