"""What a user may ask of a plan: budget, ways, exactness, device, how long to solve.

In go values as people write them; `check` says everything that is wrong with them at once, before
anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import final

from legroom import tiers, variants, ways
from legroom.capture import Rewrite
from legroom.errors import TierError, UsageError
from legroom.meter import parse_device
from legroom.plan import presets
from legroom.plan._budget import Budget, choose_budget, parse_stash
from legroom.plan._effort import EFFORTS, FIXED, PROPORTIONAL, Allowance
from legroom.registry import unknown_name
from legroom.ways import AbstractTechnique, Exactness


@final
@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What to plan.

    Attributes:
        budget: Upper bound on the peak: `"4GiB"`, `"50%"` of the plain step's peak, or bytes.
        activations: The same as state plus a share of the rest: `"50%"`.
        stash: Upper bound on what forward leaves for backward: `"80MiB"`, `"25%"` of what it leaves
            in the plain step, or bytes. Without a budget the peak may be the plain step's.
        disk: Whether tensors may be held on the disk: True, or the folder to do so in.
        host: Whether tensors of an accelerator may be held in pinned host memory.
        ways: Names of the ways and variants that may be used; None: all. `hold` always may.
        asked: Those among them that were asked for by name, rather than left over.
        exactness: `"bitwise"`, `"rounding"` or `"lossy"`: what may be used at most.
        max_gradient_error: How far gradients may be off, relatively, with `"lossy"`; None: measured
            and said, not bounded.
        check_every: After so many calls the gradients of a lossy plan are measured again; None:
            only before training.
        preset: A recipe of the literature to follow instead of searching; the budget picks among
            its forms. None: all compete.
        device: Another device to plan for, by name or described; None: the one in use.
        effort: `"proportional"`: planning takes as long as there is something to gain, within the
            time limit; `"fixed"`: so much work, whatever the time, so that plans are repeatable.
        time_limit_s: Longest time for all that planning for one budget does.
        on_unplannable: `"plain"`: calls that cannot be planned run as they are, and that is said;
            `"error"`: they are refused.
        num_points: Budgets on the frontier; 0: only floor and chosen budget.
        is_as_written: Whether nothing is rewritten, whatever may be; see Note [Reserve], rule 4.
        is_compiled: Whether what is planned runs with compiled kernels; see `Planner`.
    """

    budget: str | int | None = None
    activations: str | None = None
    stash: str | int | None = None
    disk: str | bool = False
    host: bool = False
    ways: tuple[str, ...] | None = None
    asked: tuple[str, ...] = ()
    exactness: str = "bitwise"
    max_gradient_error: float | None = None
    check_every: int | None = None
    preset: str | None = None
    device: str | None = None
    effort: str = PROPORTIONAL
    time_limit_s: float = 30.0
    on_unplannable: str = "plain"
    num_points: int = 10
    is_as_written: bool = False
    is_compiled: bool = False

    def check(self) -> None:
        """Raise one `UsageError` for everything that is wrong."""
        report_faults(self.faults())

    def faults(self) -> list[str]:
        """Everything that is wrong, a sentence each."""
        return [
            *faults_of(choose_budget, self.budget, self.activations),
            *(faults_of(parse_stash, self.stash) if self.stash is not None else ()),
            *self._faults_of_both(),
            *self._faults_of_tiers(),
            *self._faults_of_exactness(),
            *(fault for name in self.ways or () for fault in faults_of(_entry, name)),
            *(faults_of(presets.get, self.preset) if self.preset is not None else ()),
            *(faults_of(parse_device, self.device) if self.device is not None else ()),
            *self._faults_of_numbers(),
        ]

    @property
    def chosen_budget(self) -> Budget | None:
        """The budget that was asked for; None if none was.

        Where only the stash is bounded, the peak may be the plain step's.
        """
        budget = choose_budget(self.budget, self.activations)
        return Budget(share=1.0) if budget is None and self.stash is not None else budget

    @property
    def chosen_stash(self) -> Budget | None:
        """The bound on what forward leaves for backward; None if none was asked for."""
        return None if self.stash is None else parse_stash(self.stash)

    @property
    def is_repeatable(self) -> bool:
        """Whether no clock enters any decision."""
        return self.effort == FIXED

    def allowance(self) -> Allowance:
        """A new allowance of time, for all that planning for one budget does."""
        return Allowance(None if self.is_repeatable else self.time_limit_s)

    def allowance_after(self, capture_s: float) -> Allowance:
        """The same, less what capturing took beyond it; a third of it is left in any case."""
        left_s = max(self.time_limit_s / 3, 2 * self.time_limit_s - capture_s)
        return self.allowance().at_most(left_s)

    @property
    def way_names(self) -> tuple[str, ...] | None:
        """The names among `ways` that are ways, and those that were asked for otherwise.

        None: all that are not used on request only.
        """
        names = self._among(ways.names())
        if not self.moves:
            return names
        if names is None:
            names = tuple(each.name for each in ways.select(exactness=Exactness(self.exactness)))
        return tuple(dict.fromkeys((*names, *self.moves)))

    @property
    def moves(self) -> tuple[str, ...]:
        """Names of the ways that hold tensors elsewhere and were asked for, however that was."""
        asked = {
            ways.Host.name: self.host,
            ways.Disk.name: self.disk,
            **dict.fromkeys(self.ways or (), True),
        }
        known = (name for name in ways.names() if asked.get(name))
        return tuple(name for name in known if issubclass(ways.get(name), ways.AbstractMove))

    @property
    def variant_names(self) -> tuple[str, ...] | None:
        """The names among `ways` that are variants; None: all."""
        return self._among(variants.names())

    @property
    def rewrites(self) -> tuple[Rewrite, ...]:
        """What changes graphs before they are differentiated."""
        return tuple(each.apply for each in self._rewrites if each.name not in self._in_reserve)

    @property
    def reserve(self) -> tuple[Rewrite, ...]:
        """The same with those in reserve, where they could be needed; see Note [Reserve]."""
        budget = self.chosen_budget
        is_bounded = self.device is not None if budget is None else not budget.is_free
        if not is_bounded or self.preset is not None or not self._in_reserve:
            return ()
        return tuple(each.apply for each in self._rewrites)

    @property
    def plans_as_written(self) -> bool:
        """Whether the step is planned as it is written as well; see Note [Reserve], rule 4."""
        is_bounded = self.chosen_budget is not None or self.device is not None
        is_asked = any(each.name in self.asked for each in self._rewrites)
        return is_bounded and self.preset is None and bool(self.rewrites) and not is_asked

    def as_written(self) -> PlanOptions:
        """The options of a plan for the step as it is written."""
        return replace(self, is_as_written=True)

    def with_reserve(self) -> PlanOptions:
        """The options of a plan that uses what is in reserve."""
        rewritten = replace(self, is_as_written=False)
        return replace(rewritten, asked=(*self.asked, *rewritten._in_reserve))

    @property
    def _rewrites(self) -> tuple[type[variants.AbstractRewrite], ...]:
        if self.is_as_written:
            return ()
        return variants.rewrites(self.variant_names, exactness=Exactness(self.exactness))

    @property
    def _in_reserve(self) -> tuple[str, ...]:
        names = (each.name for each in self._rewrites if each.costs_time)
        return tuple(name for name in names if name not in self.asked)

    def _among(self, known: tuple[str, ...]) -> tuple[str, ...] | None:
        return None if self.ways is None else tuple(name for name in self.ways if name in known)

    def _faults_of_both(self) -> Iterator[str]:
        """Of a bound on the stash beside a budget that is looked for."""
        word = self.budget.strip().lower() if isinstance(self.budget, str) else ""
        if self.stash is not None and word in ("free", "lowest"):
            yield (
                f"budget {self.budget!r} is looked for without a bound on the stash; give stash "
                f"{self.stash!r} alone, or beside a size or a share"
            )

    def _faults_of_tiers(self) -> Iterator[str]:
        is_folder = isinstance(self.disk, str) and self.disk.strip()
        if not (is_folder or self.disk in (True, False, None)):
            yield f"disk {self.disk!r} is not a folder; name one, as '/scratch'"
        if not isinstance(self.host, bool):
            yield f"host {self.host!r} is not understood; write True or False"
        if self.device is None:
            yield from self._faults_of_opening()
            return
        for name in self.moves:
            if name != ways.Host.name:
                yield (
                    f"device {self.device!r} is another machine's, whose {name} is not known; plan "
                    f"without the {name}, or on that machine"
                )

    def _faults_of_opening(self) -> Iterator[str]:
        """Of host memory, which not every machine has use for; a disk is opened when it is used."""
        if ways.Host.name in self.moves:
            try:
                tiers.current(ways.Host.tier)
            except TierError as error:
                yield str(error)

    def _faults_of_exactness(self) -> Iterator[str]:
        allowed = [each.value for each in Exactness]
        if self.exactness not in allowed:
            yield f"exactness {self.exactness!r} is unknown; write {', '.join(allowed)}"

    def _faults_of_numbers(self) -> Iterator[str]:
        if self.effort not in EFFORTS:
            yield f"effort {self.effort!r} is unknown; write {' or '.join(EFFORTS)}"
        if not (self.time_limit_s > 0 and math.isfinite(self.time_limit_s)):
            yield f"time limit {self.time_limit_s!r} s leaves no time; write seconds above 0"
        bound = self.max_gradient_error
        if bound is not None and not (bound > 0 and math.isfinite(bound)):
            yield f"gradient error {bound!r} is no bound; write a share above 0, as 0.05"
        if bound is not None and self.exactness != Exactness.LOSSY.value:
            yield f"a bound on the gradient error is for exactness 'lossy', not {self.exactness!r}"
        if self.check_every is not None and self.check_every < 1:
            yield f"a check every {self.check_every!r} calls is none; write 1 or more"
        if self.check_every is not None and self.exactness != Exactness.LOSSY.value:
            yield f"checking gradients is for exactness 'lossy', not {self.exactness!r}"
        if self.num_points < 0:
            yield f"{self.num_points!r} points make no frontier; write 0 for none, or more"


def choose_ways(
    *, only: Iterable[str] = (), without: Iterable[str] = (), exactness: str = "bitwise"
) -> tuple[str, ...] | None:
    """The names that may be used, of ways and variants; None where nothing was said: all.

    Args:
        only: If any, nothing but these.
        without: Not these.
        exactness: What was asked for; a name in `only` that it does not allow is a fault.

    Raises:
        UsageError: Names that are unknown, contradict one another, or cannot be left out.
    """
    only, without = tuple(only), tuple(without)
    report_faults(faults_of_ways(only=only, without=without, exactness=exactness))
    if not only and not without:
        return None
    return tuple(name for name in only or allowed_ways(exactness) if name not in without)


def allowed_ways(exactness: str) -> tuple[str, ...]:
    """Names of all ways and variants that an exactness allows, but for those on request only."""
    usual = (name for name in ways.names() if not ways.get(name).is_on_request)
    every = (*usual, *variants.names())
    return tuple(name for name in every if not [*_faults_of_name(name, exactness)])


def faults_of_ways(
    *, only: Iterable[str] = (), without: Iterable[str] = (), exactness: str = "bitwise"
) -> Iterator[str]:
    """Everything that `choose_ways` would complain about, a sentence each."""
    only, without = tuple(only), tuple(without)
    for name in dict.fromkeys((*only, *without)):
        yield from faults_of(_entry, name)
    for name in only:
        if name in without:
            yield f"{name!r} is asked for with and without; give one of them"
        yield from _faults_of_name(name, exactness)
    if ways.Hold.name in without:
        yield f"{ways.Hold.name!r} cannot be left out: what nothing else applies to is held"


def _faults_of_name(name: str, exactness: str) -> Iterator[str]:
    if name not in (*ways.names(), *variants.names()) or exactness not in _EXACTNESS_NAMES:
        return  # said already
    needed = _entry(name).exactness
    if not Exactness(exactness).allows(needed):
        yield (
            f"{name!r} is {needed.value}, but exactness is {exactness!r}; "
            f"ask for exactness {needed.value!r} too"
        )


_EXACTNESS_NAMES = tuple(each.value for each in Exactness)


def _entry(name: str) -> type[AbstractTechnique]:
    """The way or variant of that name.

    Raises:
        UnknownNameError: There is none.
    """
    if name in variants.names():
        return variants.get(name)
    if name in ways.names():
        return ways.get(name)
    raise unknown_name("way", name, (*ways.names(), *variants.names()))


def faults_of(check: Callable[..., object], *arguments: object) -> list[str]:
    """What the check complains about, as a list of none or one."""
    try:
        check(*arguments)
    except UsageError as error:
        return [str(error)]
    return []


def report_faults(faults: Iterable[str]) -> None:
    """Raise one `UsageError` that says all of them; nothing for none."""
    found = list(dict.fromkeys(faults))
    if len(found) == 1:
        raise UsageError(found[0])
    if found:
        listed = "".join(f"\n  - {fault}" for fault in found)
        raise UsageError(f"{len(found)} options are wrong:{listed}")
