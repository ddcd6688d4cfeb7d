"""What these tests compile is gone afterwards: others ask whether compiled code is in use."""

import gc

import pytest
import torch


@pytest.fixture(autouse=True)
def _nothing_stays_compiled():
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    gc.collect()
