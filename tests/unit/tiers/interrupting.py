"""Ctrl-C at a chosen point: an exception between two lines of given files."""

import contextlib
import linecache
import sys


class Interrupter:
    """Counts the lines that this thread runs in some files, and raises at one of them.

    Attributes:
        num_lines: How many were run.
        where: The file's name and line at which it raised.
    """

    def __init__(self, folders, *, at=None, error=KeyboardInterrupt):
        self.folders, self.at, self.error = folders, at, error
        self.num_lines, self.where = 0, None

    @contextlib.contextmanager
    def running(self):
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            yield self
        finally:
            sys.settrace(before)

    def _call(self, frame, event, argument):
        return (
            self._line if any(each in frame.f_code.co_filename for each in self.folders) else None
        )

    def _line(self, frame, event, argument):
        if event == "line" and not is_with(frame) and not in_finalizer(frame):
            self.num_lines += 1
            if self.num_lines == self.at:
                name = frame.f_code.co_filename.rpartition("/")[2]
                self.where = f"{name}:{frame.f_lineno}"
                raise self.error
        return self._line


def in_finalizer(frame):
    """There Python swallows exceptions."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def is_with(frame):
    """Python runs this line again to leave the block; no signal comes between body and leaving."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")
