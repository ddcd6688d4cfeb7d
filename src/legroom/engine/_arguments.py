"""What `fit` and `verify` are told, checked: one place for what both take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from legroom.errors import UsageError
from legroom.plan import PlanOptions, choose_ways

KindT = TypeVar("KindT")


def options_from(  # noqa: PLR0913 - what `fit` and `verify` take
    *,
    budget: str | int | None,
    activations: str | None,
    stash: str | int | None = None,
    disk: str | bool = False,
    host: bool = False,
    exactness: str,
    ways: Iterable[str],
    without: Iterable[str],
    time_limit_s: float,
    effort: str = "proportional",
    preset: str | None = None,
    max_gradient_error: float | None = None,
    check_every: int | None = None,
    on_unplannable: str = "plain",
) -> PlanOptions:
    """The options of a plan that is to be carried out.

    Raises:
        UsageError: Nobody said how much memory there is, or an option is wrong.
    """
    ways = tuple(ways)
    if budget is None and activations is None and stash is None:
        raise UsageError(
            'say how much memory there is: budget="6GiB", budget="50%", or activations="50%"; '
            'or how much may be kept for backward: stash="25%"'
        )
    options = PlanOptions(
        budget=budget,
        activations=activations,
        stash=stash,
        disk=disk,
        host=host,
        ways=choose_ways(only=ways, without=without, exactness=exactness),
        asked=tuple(ways),
        exactness=exactness,
        max_gradient_error=max_gradient_error,
        check_every=check_every,
        on_unplannable=on_unplannable,
        preset=preset,
        effort=effort,
        time_limit_s=time_limit_s,
        num_points=0,
    )
    options.check()
    return options


def as_tuple(given: Any, kind: type[KindT], name: str) -> tuple[KindT, ...]:
    """One or several of a kind, or None, as a tuple.

    Raises:
        UsageError: Something is not of that kind.
    """
    if given is None:
        return ()
    is_several = isinstance(given, Iterable) and not isinstance(given, kind)
    found = tuple(given) if is_several else (given,)
    for each in found:
        if not isinstance(each, kind):
            raise UsageError(f"{name} must be a {kind.__name__}, not {type(each).__name__}")
    return found
