"""Fitted models in DistributedDataParallel: two processes, gloo, every bit as without a plan."""

import copy
import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import legroom
from legroom.errors import UsageError
from tests.unit.engine.training import (
    Net,
    batch,
    check_planned,
    first_difference,
    sgd,
    train,
)

_NUM_PROCESSES = 2


class Shared(Net):
    """A block that is called twice, and a layer that only some steps use."""

    def __init__(self):
        super().__init__()
        self.sometimes = nn.Linear(16, 16)
        self.never = nn.Linear(16, 16)

    def forward(self, value, target, extra=False):
        value = self.features(self.blocks[1](value))
        if extra:
            value = value + self.sometimes(value)
        return F.cross_entropy(self.head(value), target)


def gradients(wrapped):
    def run(model, step):
        value, target = batch(10 * step + dist.get_rank())
        uses_all = step == 1
        with wrapped.no_sync():
            wrapped(value, target, extra=uses_all).backward()
        # Another kind of call, first made inside DDP's own scope while gradients wait.
        loss = wrapped(value, target, uses_all)
        loss.backward()
        return loss

    return run


def compare_in_a_process(rank, port, cache):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LEGROOM_CACHE_DIR=cache)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=_NUM_PROCESSES)
    torch.manual_seed(0)
    model = Shared()
    plain = copy.deepcopy(model)
    wrapped = DistributedDataParallel(plain, find_unused_parameters=True)
    expected = train(plain, gradients(wrapped), sgd(plain), seed=rank)
    optimizer = sgd(model)
    handle = legroom.fit(model, activations="70%", optimizer=optimizer)
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    with pytest.raises(UsageError, match="Shared is already fitted"):
        legroom.fit(wrapped, activations="90%")
    actual = train(model, gradients(wrapped), optimizer, seed=rank)
    difference = first_difference(expected, actual)
    assert difference is None, f"{difference} differs"
    check_planned(handle.report(), within_budget=False)
    handle.undo()
    compare_wrapped(rank, expected)
    dist.destroy_process_group()


def compare_wrapped(rank, expected):
    """Fitted is what DDP wraps, also where DDP is given; the handle still calls DDP."""
    torch.manual_seed(0)
    model = Shared()
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    handle = legroom.fit(wrapped, activations="70%")
    actual = train(model, gradients(wrapped), sgd(model), seed=rank)
    difference = first_difference(expected, actual)
    assert difference is None, f"{difference} differs where DDP is fitted"
    check_planned(handle.report(), within_budget=False)
    assert handle.wrapper is wrapped
    handle.undo()


def test_two_processes_train_as_without_a_plan(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(compare_in_a_process, args=(port, str(tmp_path)), nprocs=_NUM_PROCESSES)
