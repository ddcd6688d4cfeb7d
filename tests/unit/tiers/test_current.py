import threading

import pytest
import torch

from legroom import tiers
from legroom.errors import TierError, UnknownNameError
from tests.unit.tiers.holding import round_trip, same_bits


def test_tiers_are_known_by_name():
    assert "disk" in tiers.names()
    for name in tiers.names():
        kind = tiers.get(name)
        assert kind.name == name
        assert kind.summary
    with pytest.raises(UnknownNameError, match=r"unknown tier 'disc'; available: .*disk"):
        tiers.get("disc")


def test_the_process_has_one_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("LEGROOM_DISK", str(tmp_path))
    monkeypatch.setattr(tiers, "_current", {})
    found = []
    threads = [threading.Thread(target=lambda: found.append(tiers.disk())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(each) for each in found}) == 1
    found[0].close()
    assert tiers.disk() is not found[0]
    tiers.disk().close()


@pytest.mark.parametrize("synchronous", [False, True])
def test_another_disk_can_be_used(tmp_path, synchronous):
    with tiers.use(folder=tmp_path, synchronous=synchronous, threads=3) as disk:
        assert tiers.disk() is disk
        with tiers.use(folder=tmp_path) as inner:
            assert tiers.current("disk") is inner
        assert tiers.disk() is disk
        x = torch.randn(100)
        assert same_bits(round_trip(disk, x), x)
        assert disk.in_use().num_threads == (0 if synchronous else 3)
    assert not disk.is_usable


def test_a_tier_that_was_given_stays_open(disk):
    with tiers.use(disk):
        assert tiers.disk() is disk
    assert disk.is_usable


def test_what_was_put_inside_is_gone_outside(tmp_path):
    with tiers.use(folder=tmp_path) as disk:
        ticket = disk.put(torch.ones(10))
    with pytest.raises(TierError, match="is closed"):
        disk.get(ticket, (10,), (1,), torch.float32)


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_closed_tier_is_opened_again_where_it_was(tmp_path, synchronous):
    with tiers.use(folder=tmp_path, synchronous=synchronous, threads=3) as disk:
        disk.close()
        again = tiers.disk()
        assert again is not disk
        assert again.folder == disk.folder
        x = torch.randn(100)
        assert same_bits(round_trip(again, x), x)
        assert again.in_use().num_threads == (0 if synchronous else 3)
        again.close()


def test_a_folder_that_cannot_be_used_changes_nothing(tmp_path):
    with tiers.use(folder=tmp_path) as disk:
        with pytest.raises(TierError, match="is not there"):
            tiers.set_folder(tmp_path / "nowhere")
        assert tiers.disk() is disk
        assert disk.is_usable
