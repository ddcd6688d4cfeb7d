"""Runs an unmodified Python script in this process, as `python script.py` would.

In go a path or a module name and the script's own arguments; out comes how it ended. legroom's own
frames are cut out of the traceback, so that a failure reads as it would without legroom.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import io
import os
import runpy
import sys
import threading
import traceback
import types
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from legroom.capture._sites import is_legroom_code, is_model_code
from legroom.errors import UsageError


class StopScript(BaseException):
    """Raised inside the script to end it early; not an `Exception`, so that scripts let it pass."""


@dataclass(frozen=True)
class Script:
    """What to run.

    Attributes:
        target: A path, or a module name where `is_module`.
        arguments: The script's own arguments.
        is_module: Whether to run it as `python -m target`.
    """

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def command(self) -> str:
        """The command line, as the user would type it without legroom."""
        head = ["python", "-m", self.target] if self.is_module else ["python", self.target]
        return " ".join([*head, *self.arguments])

    def check(self) -> None:
        """Raise `UsageError` if there is nothing to run."""
        if self.is_module:
            self._check_module()
            return
        path = Path(self.target)
        if not path.exists():
            raise UsageError(
                f"script {self.target!r} does not exist (looked in {os.getcwd()!r}); "
                "options of legroom go before the script, the script's own after it"
            )
        if path.is_dir() and not (path / "__main__.py").exists():
            raise UsageError(f"{self.target!r} is a folder without a __main__.py; name a script")

    def _check_module(self) -> None:
        try:
            with _as_main(self):
                found = importlib.util.find_spec(self.target)
        except ModuleNotFoundError as error:
            # Somebody else's missing module is the script's own failure, and is shown as such.
            if not error.name or not f"{self.target}.".startswith(f"{error.name}."):
                return
            found = None
        except Exception:  # its package fails on import: running it will show how
            return
        if found is None:
            raise UsageError(
                f"module {self.target!r} does not exist (looked in {os.getcwd()!r} and among the "
                "installed packages); without -m, name a file"
            )


@dataclass(frozen=True)
class ScriptOutcome:
    """How a script ended.

    Attributes:
        error: What it raised; None when it finished or was stopped by legroom.
        was_stopped: Whether legroom ended it.
    """

    error: BaseException | None
    was_stopped: bool

    @property
    def traceback(self) -> str:
        """The script's own traceback, without the frames that launched it."""
        if self.error is None:
            return ""
        report = traceback.TracebackException.from_exception(self.error)
        _leave_out_legroom(report)
        return "".join(report.format())

    @property
    def where(self) -> str:
        """The last line of the script's own code that was running: `'train.py:12'`."""
        frames = traceback.extract_tb(self.error.__traceback__ if self.error else None)
        own = [frame for frame in frames if is_model_code(frame.filename)]
        return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def run_script(script: Script) -> ScriptOutcome:
    """Run the script to its end, or until it fails or is stopped.

    A `SystemExit` with code 0 is a normal end; Ctrl-C comes back as a `KeyboardInterrupt`.
    """
    script.check()
    _forget_unions()
    with _as_main(script):
        try:
            if script.is_module:
                runpy.run_module(script.target, run_name="__main__", alter_sys=True)
            elif os.path.isfile(script.target):
                _run_file(script.target)
            else:  # a folder with a __main__.py
                runpy.run_path(os.path.abspath(script.target), run_name="__main__")
        except StopScript:
            return ScriptOutcome(error=None, was_stopped=True)
        except SystemExit as error:
            failed = error.code not in (None, 0)
            return ScriptOutcome(error=error if failed else None, was_stopped=False)
        except BaseException as error:
            return ScriptOutcome(error=error, was_stopped=False)
    return ScriptOutcome(error=None, was_stopped=False)


def _run_file(target: str) -> None:
    """Run a file as Python itself does: `__file__` is absolute, `sys.argv[0]` is as typed.

    `runpy.run_path` changes `sys.argv[0]`, which scripts write into their logs.
    """
    path = os.path.abspath(target)
    module = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    vars(module).update(
        __file__=path, __cached__=None, __loader__=loader, __builtins__=builtins, __package__=None
    )
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec")
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        exec(code, vars(module))
    finally:
        sys.modules["__main__"] = before


def _forget_unions() -> None:
    """Have `typing` forget the unions that were made so far.

    It takes `Union[int, float]` for `Union[float, int]` once somebody made that, and parsers of
    command lines try types in their order: what legroom has imported must not decide that.
    """
    for forget in getattr(typing, "_cleanups", ()):
        forget()


@contextmanager
def _as_main(script: Script) -> Iterator[None]:
    argv, path, streams = sys.argv, list(sys.path), (sys.stdout, sys.stderr)
    complain = threading.excepthook

    def complain_unless_stopped(failure: threading.ExceptHookArgs) -> None:
        if not issubclass(failure.exc_type, StopScript):
            complain(failure)

    threading.excepthook = complain_unless_stopped
    folder = os.getcwd() if script.is_module else str(Path(script.target).resolve().parent)
    sys.argv = [script.target, *script.arguments]
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = path
        sys.stdout, sys.stderr = streams
        threading.excepthook = complain


def _leave_out_legroom(report: traceback.TracebackException) -> None:
    """Take legroom's and runpy's frames out of a traceback and of those that led to it."""
    report.stack = traceback.StackSummary.from_list(
        [
            frame
            for frame in report.stack
            if "runpy" not in frame.filename and not is_legroom_code(frame.filename)
        ]
    )
    for earlier in (report.__cause__, report.__context__):
        if earlier is not None:
            _leave_out_legroom(earlier)
