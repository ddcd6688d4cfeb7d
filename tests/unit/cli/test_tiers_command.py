import json

import pytest
from click.testing import CliRunner

from legroom import tiers
from legroom.cli._tiers import tiers_command
from legroom.errors import TierError
from legroom.meter import _tier_speed as module


@pytest.fixture(autouse=True)
def _quickly(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_LENGTHS", {4096: 3, 2**20: 2})
    monkeypatch.setattr(module, "_ALONE_MS", 1.0)
    monkeypatch.setenv("LEGROOM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("LEGROOM_DISK", str(tmp_path))


def run(*arguments):
    result = CliRunner().invoke(tiers_command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_table_names_every_tier(tmp_path):
    text = run()
    assert [name for name in tiers.names() if name not in text] == []
    for word in ("out", "in", "latency", "alone", "while computing", "free", "/s"):
        assert word in text
    assert "while it moves, computing takes" in text


def test_the_list_is_data_as_well(tmp_path):
    data = json.loads(run("--json"))
    assert data["schema"] == "legroom.tiers/1"
    by_name = {each["name"]: each for each in data["tiers"]}
    assert tuple(by_name) == tiers.names()
    disk = by_name["disk"]
    assert disk["description"]["where"] == str(tmp_path)
    assert disk["free_bytes"] > 0
    assert disk["speed"]["bytes_per_ms_put"] > 0


def test_the_folder_can_be_named(tmp_path):
    (tmp_path / "other").mkdir()
    data = json.loads(run("--json", "--folder", str(tmp_path / "other")))
    (disk,) = [each for each in data["tiers"] if each["name"] == "disk"]
    assert disk["description"]["where"] == str(tmp_path / "other")
    with pytest.raises(TierError, match="is not there"):
        run("--folder", str(tmp_path / "nowhere"))


def test_speeds_are_kept_until_asked_for_anew():
    first, second, third = run("--json"), run("--json"), run("--json", "--fresh")
    speeds = [
        {each["name"]: each["speed"] for each in json.loads(text)["tiers"]}["disk"]
        for text in (first, second, third)
    ]
    assert speeds[0] == speeds[1]
    assert speeds[1] != speeds[2]


def test_a_tier_that_cannot_be_used_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("LEGROOM_DISK", str(tmp_path / "nowhere"))
    data = json.loads(run("--json"))
    (disk,) = [each for each in data["tiers"] if each["name"] == "disk"]
    assert "is not there" in disk["reason"]
    assert disk["speed"] is None
    assert "is not there" in run()
