"""Recipes that hold elsewhere what backward reads; they apply where a plan may move tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from legroom.plan._problem import Choice, Problem
from legroom.plan._search import Search
from legroom.plan.presets._by_cost import is_expensive
from legroom.plan.presets._preset import AbstractPreset


def _read_late(problem: Problem) -> list[int]:
    return [number for number, each in enumerate(problem.candidates) if each.late_uses]


def _inputs_of_convolutions(problem: Problem) -> list[int]:
    """What the gradient of a convolution reads."""
    operations = problem.graph.operations
    return [
        number
        for number in _read_late(problem)
        if any(
            "convolution_backward" in operations[position].name
            for position in problem.candidates[number].late_uses
        )
    ]


@final
class VDNN(AbstractPreset):
    """Everything that backward reads leaves after its last use in forward."""

    name = "vdnn"
    summary = "hold elsewhere all that backward reads, or only the inputs of convolutions"
    origin = "vDNN 2016 (all, and conv only)"
    costs = "what of the transfers is not hidden"
    when = (
        "For convolutional networks and a fast disk. The first form moves all that backward "
        "reads, the second only the inputs of convolutions."
    )
    not_with = "Plans without `disk=`."
    uses = ("disk",)

    @classmethod
    def choices(cls, search: Search) -> Iterator[Choice]:
        """All, then only the inputs of convolutions where there are any."""
        whole = search.hold_all()
        for numbers in (_read_late(search.problem), _inputs_of_convolutions(search.problem)):
            choice = search.moving(whole, numbers)
            if choice != whole:
                yield choice


@final
class Swap(AbstractPreset):
    """What is not read again for longest leaves, as long as nothing has to wait for it."""

    name = "swap"
    summary = "hold elsewhere what backward reads last, as long as nothing waits for it"
    origin = "swapping in TensorFlow (Meng 2017, TFLMS 2018)"
    costs = "the processor's share in the transfers"
    when = "For a disk that is slow: only as much leaves as comes back in time."
    not_with = "Plans without `disk=`."
    uses = ("disk",)

    @classmethod
    def choices(cls, search: Search) -> Iterator[Choice]:
        """The most that leaves without waiting, of what comes back last: by halves."""
        problem, whole = search.problem, search.hold_all()
        last_first = sorted(
            _read_late(problem), key=lambda n: (-problem.candidates[n].late_uses[0], n)
        )
        low, high = 0, len(last_first)
        while low < high:
            middle = (low + high + 1) // 2
            choice = search.moving(whole, last_first[:middle])
            low, high = (middle, high) if search.waited_ms(choice) <= 0 else (low, middle - 1)
        choice = search.moving(whole, last_first[:low])
        if choice != whole:
            yield choice


@final
class SuperNeurons(AbstractPreset):
    """What takes long to compute leaves, what does not is run again."""

    name = "superneurons"
    summary = "hold elsewhere what takes long to compute, run the rest again"
    origin = "SuperNeurons 2018"
    costs = "what of the transfers is not hidden, and cheap operations once more"
    when = (
        "For convolutional networks and a fast disk: results of convolutions and matrix "
        "products leave, everything else is run again."
    )
    not_with = "Plans without `disk=`."
    uses = ("disk", "remake")

    @classmethod
    def choices(cls, search: Search) -> Iterator[Choice]:
        """Applies where anything that is expensive can be moved."""
        problem = search.problem
        expensive = [
            number
            for number, candidate in enumerate(problem.candidates)
            if is_expensive(problem.graph.operations[candidate.producer])
        ]
        held = search.holding(expensive)
        choice = search.moving(held, expensive)
        if choice != held:
            yield choice
