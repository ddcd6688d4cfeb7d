import dataclasses
import json

import pytest
import torch

from legroom.errors import TierError
from legroom.meter import TierSpeed, tier_speed
from legroom.meter import _tier_speed as module
from legroom.meter._tier_speed import _line_through
from legroom.tiers import Disk


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LEGROOM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_LENGTHS", {4096: 3, 2**20: 2})
    monkeypatch.setattr(module, "_ALONE_MS", 1.0)
    return tmp_path / "cache" / "tier_speeds"


@pytest.fixture
def disk(tmp_path):
    with Disk.open(tmp_path, allow_tmpfs=True).closing() as tier:
        yield tier


def test_a_line_is_found_again():
    for latency_ms, bytes_per_ms in [(0.1, 1e6), (5.0, 1e4), (0.0, 3e6)]:
        times = {n: latency_ms + n / bytes_per_ms for n in (4096, 2**20, 2**25)}
        line = _line_through(times)
        assert line.latency_ms == pytest.approx(latency_ms, abs=1e-9)
        assert line.bytes_per_ms == pytest.approx(bytes_per_ms)


def test_times_without_a_slope_give_a_bandwidth():
    assert _line_through({4096: 2.0, 2**20: 1.0}).bytes_per_ms == 2**20
    assert _line_through({4096: 2.0}).bytes_per_ms == 2048


def test_every_figure_is_measured(cache, disk):
    speed = tier_speed(disk)
    for name, value in dataclasses.asdict(speed).items():
        assert value >= 0, name
        assert value > 0 or "latency" in name
    assert speed.compute_slowdown >= 1
    used = disk.in_use()
    assert (used.num_slots, used.in_flight_bytes) == (0, 0)


def test_computing_is_slowed_down_by_the_time_that_moving_takes(cache, disk, monkeypatch):
    seconds = iter((10.0, 13.0))
    monkeypatch.setattr(module.time, "process_time", lambda: next(seconds))
    started = module.time.perf_counter()
    slowdown = tier_speed(disk).compute_slowdown
    most_ms = 1e3 * (module.time.perf_counter() - started)
    assert slowdown >= 1 + 3e3 / most_ms / torch.get_num_threads()


def test_moving_takes_latency_and_bytes():
    speed = TierSpeed(1e6, 2e6, 0.5, 0.25, 0.5e6, 1e6, 1.0, 2.0, 1.1)
    assert speed.put_ms(10**6, computing=False) == 1.5
    assert speed.get_ms(10**6, computing=False) == 0.75
    assert speed.put_ms(10**6) == 3.0
    assert speed.get_ms(10**6) == 3.0


def test_what_was_measured_is_kept(cache, disk, monkeypatch):
    first = tier_speed(disk)
    assert len(list(cache.iterdir())) == 1
    stages = []
    with monkeypatch.context() as patch:
        patch.setattr(module, "_measure", None)
        assert tier_speed(disk, on_progress=lambda *args: stages.append(args)) == first
    assert stages == []
    again = tier_speed(disk, fresh=True, on_progress=lambda *args: stages.append(args))
    assert again != first
    assert stages == [("measuring tier disk", done, 3) for done in range(4)]
    assert tier_speed(disk) == again


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", '{"speed": {"bytes_per_ms_put": 1}}', '{"speed": 3}', "\x00", "NaN"],
)
def test_a_damaged_cache_is_measured_anew(cache, disk, content):
    tier_speed(disk)
    (path,) = cache.iterdir()
    path.write_text(content)
    assert tier_speed(disk).bytes_per_ms_get > 0
    assert json.loads(path.read_text())["schema"] == module._SCHEMA


def test_impossible_figures_are_measured_anew(cache, disk):
    tier_speed(disk)
    (path,) = cache.iterdir()
    data = json.loads(path.read_text())
    data["speed"]["bytes_per_ms_get"] = 0
    path.write_text(json.dumps(data))
    assert tier_speed(disk).bytes_per_ms_get > 0


def test_a_cache_that_cannot_be_written_is_no_error(cache, disk):
    cache.parent.write_text("a file")
    assert tier_speed(disk).bytes_per_ms_get > 0


def test_other_surroundings_are_measured_apart(cache, disk, tmp_path):
    tier_speed(disk)
    with Disk.open(tmp_path, allow_tmpfs=True, synchronous=True).closing() as other:
        tier_speed(other)
    assert len(list(cache.iterdir())) == 2


def test_random_numbers_stay_as_they_are(cache, disk):
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    tier_speed(disk, fresh=True)
    assert torch.equal(torch.rand(3), expected)


def test_errors_of_the_tier_come_through(cache, disk):
    disk.close()
    with pytest.raises(TierError, match="is closed"):
        tier_speed(disk)


def test_errors_while_computing_come_through():
    def fail():
        raise TierError("broken")

    with pytest.raises(TierError, match="broken"):
        module._while_computing(fail)
