"""Settings for every test: one thread, a seed, a cache of its own, known times of operations."""

import os
import sys

import pytest
import torch

from legroom.capture import signature_of
from legroom.engine import _calibration
from legroom.meter import (
    Device,
    OperationTime,
    TimeCache,
    _operation_times,
    modelled_times,
    surroundings_of,
)

_KNOWN = Device("one core", 0, 30e9, 30e9, 10e9, 10e9, launch_ms=0.005)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Operation times measured by tests stay out of the user's cache, and his out of tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGROOM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _times_known_beforehand(_own_cache):
    """Operations take what their arithmetic and traffic say: no plan hangs on a busy machine."""

    def known_ms(call):
        call.run()  # fails if it cannot, and makes what a first run makes
        args, kwargs = call.sets[0]
        (time,) = modelled_times([signature_of(call.operation, args, kwargs)], _KNOWN).values()
        return time.ms

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_operation_times, "time_round", known_ms)
        yield


@pytest.fixture(scope="session", autouse=True)
def _executor_known_beforehand(_own_cache):
    """The executor takes nothing of its own: it is in the cache, for processes of tests as well."""
    known = OperationTime(0.0, is_measured=True)
    surroundings = surroundings_of(torch.device("cpu"))
    for num_threads in {1, torch.get_num_threads(), os.cpu_count()}:
        cache = TimeCache({**surroundings, "threads": str(num_threads)})
        cache.read()
        for signature in _calibration.SIGNATURES:
            cache.add(signature, known)


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _no_counts_stay():
    """What one test has compiled must not look to the next like its own."""
    yield
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and dynamo.utils.counters:
        dynamo.utils.counters.clear()
