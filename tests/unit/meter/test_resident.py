import sys

import pytest
import torch

from legroom.meter import _resident

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


def test_growth_is_what_was_held_on_top():
    _resident.release_free_heap()
    before = _resident.resident_bytes()
    if not _resident.reset_highest():
        pytest.skip("this system does not let a process reset its highest resident size")
    block = torch.ones(32 * 2**20, dtype=torch.uint8)
    del block
    peak = _resident.ResidentPeak(before, _resident.highest_resident_bytes())
    assert 30 * 2**20 <= peak.growth_bytes <= 64 * 2**20


def test_where_proc_is_closed_the_answer_is_none(monkeypatch):
    def closed(*args, **kwargs):
        raise OSError("closed")

    monkeypatch.setattr("builtins.open", closed)
    assert _resident.resident_bytes() is None
    assert _resident.highest_resident_bytes() is None
    assert _resident.reset_highest() is False
