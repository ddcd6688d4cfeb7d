"""What a fitted target runs as it is although it trains, why, and what to tell the user of it.

In come kinds of call that could not be planned or compiled; out comes one warning for each reason,
and counts for the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, final

import torch
from torch.utils import _pytree as pytree

from legroom.capture import line_of_caller
from legroom.engine._call_key import CallKey
from legroom.errors import CopyFailedError, LegroomError, NothingCapturedError, UnplannableError

NEW_SHAPES = (
    "planning has taken what it may (30 s, and 5 % of the time since), and calls come with ever "
    "new shapes or modules; to have them planned, pad batches to a few lengths, or make the model "
    "once"
)


@final
class PlainCalls:
    """Kinds of call that run as they are.

    Args:
        say: Tells the user.
        is_refused: Whether the user wants an error instead.
        said: Reasons that the user was told, of other models too.

    Attributes:
        counts: How many calls ran as they are, by reason.
    """

    def __init__(
        self, say: Callable[[str], None], *, is_refused: bool, said: set[str] | None = None
    ) -> None:
        self._say = say
        self._is_refused = is_refused
        self._why: dict[CallKey, str] = {}
        self.counts: Counter[str] = Counter()
        self._said = set() if said is None else said

    def why(self, key: CallKey) -> str | None:
        """Why calls of this kind run as they are; None: they do not."""
        return self._why.get(key)

    def leave(self, key: CallKey, why: str) -> None:
        """Let calls of this kind run as they are from now on.

        Raises:
            UnplannableError: The user wants to know at once.
        """
        if self._is_refused:
            raise UnplannableError(key.in_words, why)
        self._why[key] = why

    def call(
        self,
        key: CallKey,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        why: str | None = None,
    ) -> Any:
        """Call the function as it is. What it raises is the user's own, and comes first.

        Args:
            why: Why calls of this kind run so from now on; None: as `leave` was told.
        """
        output = function(*args, **kwargs)
        if why is not None:
            self.leave(key, why)
        why = self._why[key]
        self.counts[why] += 1
        if why not in self._said:
            self._said.add(why)
            where = line_of_caller()
            at = f" (as at {where})" if where else ""
            self._say(f"calls with {key.in_words}{at} run as they are, without a plan: {why}")
        return output

    def reasons(self) -> tuple[tuple[str, str], ...]:
        """What was not planned and why, for the report."""
        return tuple(
            (f"{count} {'call' if count == 1 else 'calls'}", why)
            for why, count in self.counts.items()
        )


def reason_of(error: BaseException, arguments: object = ()) -> str:
    """Why something could not be planned, in one line.

    Args:
        arguments: What it was called with: a sparse tensor among them is reason enough.
    """
    for leaf in pytree.tree_leaves(arguments):
        if isinstance(leaf, torch.Tensor) and leaf.layout is not torch.strided:
            layout = str(leaf.layout).removeprefix("torch.")
            return (
                f"a sparse tensor ({layout}) is among the arguments, and those cannot be captured"
            )
    error = getattr(error, "inner_exception", error)  # TorchDynamo wraps what a backend raises
    if isinstance(error, NothingCapturedError) and error.reasons:
        return _first_line(error.reasons[0])
    if isinstance(error, CopyFailedError):
        return _first_line(error.why)
    if isinstance(error, LegroomError):
        return _first_line(str(error))
    return f"{type(error).__name__}: {_first_line(str(error))}"


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[0].removesuffix(":") if lines else "no reason was given"
