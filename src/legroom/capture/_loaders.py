"""Batches of loaders, while a step is captured without memory.

In go `DataLoader`s; out come batches of the samples that plain training could draw, as ordinary
data where the loader has workers. See Note [Loaders].
"""

# Note [Loaders]
# 1. A worker that is forked while a step is captured would inherit modes and fake tensors. None is
#    started: the loader's own process fetches, as the one worker there is.
# 2. Plain training does not see what workers compute, so here it is neither faked nor recorded.
# 3. Datasets ask who they are (`get_worker_info`) and loaders call `worker_init_fn`: both are
#    answered as for worker 0 of 1, which gets all of an iterable dataset.
# 4. Iterators that were made before keep their workers; their batches arrive as ordinary data.
#    In a copy of the process those workers are out of reach. There this process fetches what they
#    were asked for: `samples_remembered` notes that in the original. Nothing shuts them down.
# 5. Which samples come next is drawn for real, with workers or without: it is no part of the step,
#    and made-up numbers would be the same sample again and again, with its one length. A sampler
#    that needs tensors that have no memory is asked again among them. Generators of its own are
#    put back in the end, as PyTorch's are.

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler
from torch.utils.data import _utils as data_utils
from torch.utils.data import dataloader as loaders

from legroom.capture._real import real_tensors
from legroom.errors import TorchInterfaceError

_TESTED = "2.13.0"


@contextlib.contextmanager
def loaders_without_workers() -> Iterator[None]:
    """Loaders start no workers, and draw for real, while it is open; see Note [Loaders]."""
    loader_class: Any = DataLoader
    base_class: Any = getattr(loaders, "_BaseDataLoaderIter", None)
    waiting_class: Any = getattr(loaders, "_MultiProcessingDataLoaderIter", None)
    if waiting_class is None or not hasattr(loaders, "_SingleProcessDataLoaderIter"):
        raise TorchInterfaceError("torch.utils.data.dataloader._*DataLoaderIter", tested=_TESTED)
    if not hasattr(base_class, "_next_index"):
        raise TorchInterfaceError("_BaseDataLoaderIter._next_index", tested=_TESTED)
    if not hasattr(waiting_class, "_shutdown_workers"):
        raise TorchInterfaceError(
            "_MultiProcessingDataLoaderIter._shutdown_workers", tested=_TESTED
        )
    make, wait = loader_class.__iter__, waiting_class.__next__
    draw, shut_down = base_class._next_index, waiting_class._shutdown_workers

    def iterate(loader: Any) -> Any:
        if not loader.num_workers:
            return make(loader)
        with real_tensors():
            persistent = getattr(loader, "_iterator", None)
            if persistent is not None and not _is_out_of_reach(persistent):
                return make(loader)
            return _iterator_at_hand(loader)

    def wait_for_batch(iterator: Any) -> Any:
        with real_tensors():
            return _batch_at_hand(iterator) if _is_out_of_reach(iterator) else wait(iterator)

    def shut_own_down(iterator: Any) -> None:
        if not _is_out_of_reach(iterator):
            shut_down(iterator)

    generators: dict[torch.Generator, torch.Tensor] = {}

    def draw_for_real(iterator: Any) -> Any:
        for generator in _generators_of(iterator._index_sampler):
            if generator not in generators:
                with real_tensors():
                    generators[generator] = generator.get_state()
        try:
            with real_tensors():
                return draw(iterator)
        except StopIteration:
            raise
        except Exception:  # fakes among what it draws from; its own faults come again
            iterator._sampler_iter = iter(iterator._index_sampler)
            return draw(iterator)

    def put_back() -> None:
        with real_tensors():
            for generator, state in generators.items():
                generator.set_state(state)

    with contextlib.ExitStack() as undo:
        undo.callback(put_back)
        undo.callback(_put(base_class, "_next_index", draw_for_real))
        undo.callback(_put(loader_class, "__iter__", iterate))
        undo.callback(_put(waiting_class, "__next__", wait_for_batch))
        undo.callback(_put(waiting_class, "_shutdown_workers", shut_own_down))
        yield


_ASKED_FOR = "_legroom_asked_for"


@contextlib.contextmanager
def samples_remembered() -> Iterator[None]:
    """Note what workers are asked for while it is open, for copies of this process; see rule 4."""
    waiting_class: Any = getattr(loaders, "_MultiProcessingDataLoaderIter", None)
    if waiting_class is None or not hasattr(waiting_class, "_next_index"):
        raise TorchInterfaceError("_MultiProcessingDataLoaderIter._next_index", tested=_TESTED)
    draw = waiting_class._next_index

    def draw_and_note(iterator: Any) -> Any:
        samples = draw(iterator)
        asked_for = vars(iterator).setdefault(_ASKED_FOR, {})
        asked_for[iterator._send_idx] = samples
        for number in [each for each in asked_for if each < iterator._rcvd_idx]:
            del asked_for[number]
        return samples

    put_back = _put(waiting_class, "_next_index", draw_and_note)
    try:
        yield
    finally:
        put_back()


def _is_out_of_reach(iterator: Any) -> bool:
    """Whether its workers are another process's."""
    workers = getattr(iterator, "_workers", ())
    return any(worker._parent_pid != os.getpid() for worker in workers)


def _batch_at_hand(iterator: Any) -> Any:
    """The next batch of an iterator whose workers are out of reach, fetched here."""
    number = iterator._rcvd_idx
    iterator._rcvd_idx += 1
    arrived = iterator._task_info.pop(number, ())
    if len(arrived) == 2:  # it had come before the batches that it is behind
        return arrived[1]
    asked_for = vars(iterator).setdefault(_ASKED_FOR, {})
    samples = asked_for.pop(number) if number in asked_for else iterator._next_index()
    info = data_utils.worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=iterator._dataset)

    def collate(samples: Any) -> Any:
        with _as_worker(None):  # torch's own would put the batch into shared memory
            return iterator._collate_fn(samples)

    with _as_worker(info):
        fetcher = vars(iterator).get("_legroom_fetcher")
        if fetcher is None:
            kinds: Any = loaders._DatasetKind
            fetcher = kinds.create_fetcher(
                iterator._dataset_kind,
                iterator._dataset,
                iterator._auto_collation,
                collate,
                iterator._drop_last,
            )
            vars(iterator)["_legroom_fetcher"] = fetcher
        return fetcher.fetch(samples)


def _generators_of(sampler: Any) -> Iterator[torch.Generator]:
    """Random numbers that a sampler draws from, or one that it asks in turn."""
    for value in vars(sampler).values() if hasattr(sampler, "__dict__") else ():
        if isinstance(value, torch.Generator):
            yield value
        elif isinstance(value, Sampler):
            yield from _generators_of(value)


def _put(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Set an attribute of a class; returns what takes it away again."""
    if name not in vars(owner):
        setattr(owner, name, value)
        return lambda: delattr(owner, name)
    before = vars(owner)[name]
    setattr(owner, name, value)
    return lambda: setattr(owner, name, before)


def _iterator_at_hand(loader: Any) -> Any:
    """An iterator over the loader's batches that fetches them in this process."""
    base: Any = loaders._SingleProcessDataLoaderIter

    class BatchesAtHand(base):  # type: ignore[misc]
        def __next__(self) -> Any:
            with real_tensors(), _as_worker(info):
                return super().__next__()

    def collate(samples: Any) -> Any:
        with _as_worker(None):  # torch's own would put the batch into shared memory
            return loader.collate_fn(samples)

    alone: Any = object.__new__(type(loader))  # the loader itself stays as it is
    vars(alone).update(vars(loader))
    vars(alone).update(num_workers=0, timeout=0, persistent_workers=False, collate_fn=collate)
    info = data_utils.worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=loader.dataset)
    with _as_worker(info):
        if loader.worker_init_fn is not None:
            loader.worker_init_fn(0)
        return BatchesAtHand(alone)


@contextlib.contextmanager
def _as_worker(info: Any) -> Iterator[None]:
    """Have `get_worker_info` answer with this."""
    worker: Any = data_utils.worker
    before, worker._worker_info = worker._worker_info, info
    try:
        yield
    finally:
        worker._worker_info = before
