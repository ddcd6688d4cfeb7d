"""Every exception the library raises on purpose.

LegroomError                    exit code 1: something failed
├── UsageError                  exit code 2: the call itself is wrong
│   ├── OutputError             an output file cannot be written
│   └── ProfileFormatError      a saved file cannot be read
├── ScriptError                 the user's script failed or cannot be measured
│   ├── NoTrainingError         it ended without a training step that could be measured
│   └── ScriptInterruptedError  exit code 130: Ctrl-C
└── TorchInterfaceError         a private PyTorch interface that legroom relies on has gone
"""

from __future__ import annotations

from typing import ClassVar


class LegroomError(Exception):
    """The base of everything that legroom raises on purpose."""

    exit_code: ClassVar[int] = 1


class UsageError(LegroomError):
    """The call itself is wrong: a bad value, a file that is not there."""

    exit_code: ClassVar[int] = 2


class OutputError(UsageError):
    """An output file cannot be written."""


class ProfileFormatError(UsageError):
    """A saved file is not what it should be: unreadable, truncated, or of another schema."""


class ScriptError(LegroomError):
    """The user's script failed or could not be measured."""


class NoTrainingError(ScriptError):
    """The script ended without a training step that could be measured."""


class ScriptInterruptedError(ScriptError):
    """The user pressed Ctrl-C."""

    exit_code: ClassVar[int] = 130


class TorchInterfaceError(LegroomError):
    """A private PyTorch interface that legroom relies on is missing or has changed.

    Args:
        name: The interface, as it is spelled in PyTorch.
        tested: The torch version it was last seen in.
    """

    def __init__(self, name: str, *, tested: str) -> None:
        import torch

        self.name, self.tested = name, tested
        super().__init__(
            f"torch {torch.__version__} has no usable {name!r}, which legroom needs "
            f"(it was tested on torch {tested}).\n"
            f"  try: pip install 'torch=={tested}', or a newer legroom"
        )
