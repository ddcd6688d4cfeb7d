"""Settings for every test: one thread, a seed, a cache of its own, no counts of compiled code."""

import sys

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Operation times measured by tests stay out of the user's cache, and his out of tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGROOM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


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
