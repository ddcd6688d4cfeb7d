"""Records training steps: PyTorch's own events, and beside them what only Python can see.

In goes a running training loop; out comes a `Recording`, plain data from which the ledger and the
profile are made later. Recording changes neither results nor memory: see `_hooks`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity

from legroom.capture import (
    AbstractTrainingObserver,
    BackwardCall,
    Kind,
    ModulePaths,
    Site,
    SiteTable,
    saved_tensors,
    scan_heap,
    shape_and_dtype,
)
from legroom.meter._events import EventStream, read_events
from legroom.meter._hooks import LineHooks
from legroom.meter._opening import (
    OpeningBalance,
    live_graph_tensors,
    state_tensors,
    storages_of,
    take_opening_balance,
)
from legroom.meter._profiler import start_profiler, stop_profiler
from legroom.meter._scopes import Tag, mark, open_scope


@dataclass(frozen=True, slots=True)
class Sighting:
    """A storage that was seen to be of some kind at the moment of a snapshot.

    Attributes:
        owner: Identity of the parameter that a gradient or state belongs to; 0 if none.
        suffix: What it is to its owner.
        node: For the stash: the autograd node that keeps it.
        field: The name under which the node keeps it.
        sequence: Ties the node to its forward operation.
    """

    address: int
    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    owner: int = 0
    suffix: str = ""
    node: str = ""
    field: str = ""
    sequence: int = -1


@dataclass(frozen=True, slots=True)
class Recording:
    """Everything that was seen while steps were recorded.

    Attributes:
        snapshots: What was seen at each SNAPSHOT mark, by its number.
        parameters: Name and module path of parameters and buffers, by identity.
        module_classes: Class name of each module, by path.
        opaque_nodes: Autograd nodes that do not show what they keep.
        has_lines: Whether lines were recorded (not while compiled code runs).
        has_inputs: Whether it was recorded what operations read.
        has_transforms: Whether torch.func's transforms were at work.
    """

    device: torch.device
    stream: EventStream
    sites: tuple[Site, ...]
    opening: OpeningBalance
    snapshots: tuple[tuple[Sighting, ...], ...]
    parameters: dict[int, tuple[str, str]]
    module_classes: dict[str, str]
    opaque_nodes: frozenset[str]
    has_lines: bool
    has_inputs: bool = True
    has_transforms: bool = False


class Recorder(AbstractTrainingObserver):
    """Records from `start` to `stop`; `boundary` separates steps.

    Args:
        device: Whose memory to account for.
        with_inputs: Whether to record what operations read. PyTorch's profiler then keeps tensors
            inside torch.func's transforms alive.
    """

    def __init__(self, device: torch.device, *, with_inputs: bool = True) -> None:
        self._device = device
        self._with_inputs = with_inputs
        self._sites = SiteTable()
        self._names = ModulePaths()
        self._hooks = LineHooks(self._sites, self._names)
        self._installed = contextlib.ExitStack()
        self._snapshots: list[tuple[Sighting, ...]] = []
        self._opaque: set[str] = set()
        self._optimizers: list[Any] = []
        self._opening = OpeningBalance(())
        self._has_lines = True
        self._thread = 0
        self.is_active = False
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(
            activities=activities, profile_memory=True, record_shapes=with_inputs
        )

    def start(self) -> None:
        """Begin: take the opening balance and switch everything on."""
        start_profiler(self._profiler, owner=self)
        self.is_active = True
        self._thread = threading.get_ident()
        try:
            self._has_lines = not _compiled_code_in_use()
            with open_scope(Tag.OVERHEAD):
                heap = scan_heap()
                self._opening = take_opening_balance(heap, self._device, on_freed=self._on_freed)
                self._names.learn_owners(heap.modules)
                del heap
            if self._has_lines:
                self._installed.enter_context(self._hooks.installed())
        except BaseException:
            self.stop()
            raise
        mark(Tag.BOUNDARY)

    @property
    def is_distorted(self) -> bool:
        """Whether recording itself kept memory alive, so that it should be done without inputs."""
        return self._with_inputs and self._hooks.saw_transform

    def boundary(self) -> None:
        """A step ended."""
        if self.is_active:
            mark(Tag.BOUNDARY)

    def stop(self, *, within_step: bool = False) -> None:
        """End: switch everything off. What was seen can be read afterwards.

        Args:
            within_step: The step did not end; what its graphs keep is looked at now.
        """
        if not self.is_active:
            return
        try:
            if within_step:
                with open_scope(Tag.OVERHEAD):
                    self._look_at_graph(tuple(live_graph_tensors()))
        finally:
            # Whatever happens, the profiler must not outlive the recording.
            self.is_active = False
            self._opening.close()
            self._installed.close()
            while self._optimizers:
                self._optimizers.pop().__exit__(None, None, None)
            stop_profiler(self._profiler)

    def recording(self) -> Recording:
        """What was seen between `start` and `stop`."""
        return Recording(
            device=self._device,
            stream=read_events(self._profiler, self._device),
            sites=self._sites.sites,
            opening=self._opening,
            snapshots=tuple(self._snapshots),
            parameters=self._names.parameter_names(),
            module_classes=dict(self._names.class_of),
            opaque_nodes=frozenset(self._opaque),
            has_lines=self._has_lines,
            has_inputs=self._with_inputs,
            has_transforms=self._hooks.saw_transform,
        )

    def optimizer_starts(self, optimizer: Optimizer) -> None:
        """Open the optimizer's scope."""
        if self._hears():
            scope = open_scope(Tag.OPTIMIZER, self._sites.here(""))
            scope.__enter__()
            self._optimizers.append(scope)

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        """Close the optimizer's scope and look at its state."""
        if not self._hears() or not self._optimizers:
            return
        self._optimizers.pop().__exit__(None, None, None)
        with open_scope(Tag.OVERHEAD):
            self._snapshot(
                self._sightings(Kind.OPTIMIZER_STATE, tensor, owner=id(parameter), suffix=f".{key}")
                for key, tensor, parameter in state_tensors(optimizer)
            )

    @contextlib.contextmanager
    def around_backward(self, call: BackwardCall) -> Iterator[None]:
        """Look at what the graph keeps, run backward in its scope, look at the gradients."""
        if not self._hears():
            yield
            return
        with open_scope(Tag.OVERHEAD):
            self._look_at_graph(call.roots)
        lines = self._hooks.resumed() if self._has_lines else contextlib.nullcontext()
        with open_scope(Tag.BACKWARD, self._sites.here(self._hooks.current_module())), lines:
            yield
        if self.is_active:
            with open_scope(Tag.OVERHEAD):
                self._look_at_gradients()

    def _hears(self) -> bool:
        """Whether this is the thread that is being recorded, and it still is."""
        return self.is_active and threading.get_ident() == self._thread

    def _look_at_graph(self, roots: tuple[torch.Tensor, ...]) -> None:
        saved, opaque = saved_tensors(roots)
        self._opaque |= opaque
        self._snapshot(
            self._sightings(
                Kind.STASH,
                item.tensor,
                node=item.node,
                field=item.field,
                sequence=item.sequence,
            )
            for item in saved
        )

    def _look_at_gradients(self) -> None:
        parameters = {id(p): p for root in self._names.roots for p in root.parameters()}
        self._snapshot(
            self._sightings(Kind.GRADIENTS, gradient, owner=owner, suffix=".grad")
            for owner, parameter in parameters.items()
            if (gradient := parameter.grad) is not None
        )

    def _sightings(self, kind: Kind, tensor: torch.Tensor, **details: Any) -> list[Sighting]:
        return [
            Sighting(storage.data_ptr(), kind, *shape_and_dtype(part), **details)
            for part, storage in storages_of(tensor, self._device)
        ]

    def _snapshot(self, sightings: Iterable[list[Sighting]]) -> None:
        self._snapshots.append(tuple(item for group in sightings for item in group))
        mark(Tag.SNAPSHOT, len(self._snapshots) - 1)

    def _on_freed(self, address: int) -> None:
        if self.is_active:
            mark(Tag.FREED, address)


def _compiled_code_in_use() -> bool:
    """Whether torch.compile has compiled anything in this process.

    Function modes and module hooks are guarded by compiled code: switching them on would have it
    compiled again, and another program measured than the one that trains.
    """
    if "torch._dynamo" not in sys.modules:
        return False
    return bool(torch._dynamo.utils.counters["frames"]["ok"])
