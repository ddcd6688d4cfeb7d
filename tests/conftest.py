"""Settings for every test: one thread, a seed, and a cache of operation times of its own."""

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
