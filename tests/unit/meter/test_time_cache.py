import threading

import pytest
import torch

from legroom.cache import cache_folder
from legroom.meter import OperationTime
from legroom.meter._time_cache import TimeCache, surroundings_of

HERE = {"device": "a test"}


def measured(ms):
    return OperationTime(ms, is_measured=True, workspace_bytes=3)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LEGROOM_CACHE_DIR", str(tmp_path))
    return tmp_path


def opened():
    cache = TimeCache(HERE)
    cache.read()
    return cache


def test_the_own_variable_comes_first(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path
    monkeypatch.delenv("LEGROOM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(cache_folder()) == "/somewhere/legroom"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(cache_folder()) == "/home/someone/.cache/legroom"


def test_what_was_added_is_read_back():
    opened().add("a", measured(1.5))
    assert TimeCache(HERE).read() == {"a": measured(1.5)}
    assert TimeCache({"device": "another"}).read() == {}


def test_the_last_line_counts():
    cache = opened()
    cache.add("a", measured(2.0))
    cache.add("a", measured(1.0))
    assert TimeCache(HERE).read() == {"a": measured(1.0)}


def test_two_writers_do_not_mix_their_lines():
    def write(name):
        cache = opened()
        for number in range(300):
            cache.add(f"{name} {number}", measured(1.0))

    writers = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    cache = TimeCache(HERE)
    assert len(cache.read()) == 600
    assert cache.notes == []


def test_a_line_without_its_end_takes_no_other_along(folder):
    opened().add("a", measured(1.0))
    (file,) = (folder / "operation_times").iterdir()
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    opened().add("b", measured(2.0))
    assert TimeCache(HERE).read() == {"a": measured(1.0), "b": measured(2.0)}


def test_opening_the_file_takes_nothing_of_what_another_adds_meanwhile(folder):
    first = opened()
    (file,) = (folder / "operation_times").iterdir()
    with file.open("a") as text:
        text.write('no line of ours\n{"signature": "half')
    inode = file.stat().st_ino
    second = opened()
    first.add("a", measured(1.0))
    second.add("b", measured(2.0))
    cache = TimeCache(HERE)
    assert cache.read() == {"a": measured(1.0), "b": measured(2.0)}
    assert file.stat().st_ino == inode
    assert len(second.notes) == len(cache.notes) == 1
    assert opened().notes == []


@pytest.mark.parametrize("ms", ["NaN", "-1", "Infinity", '"x"', "null"])
def test_what_is_no_time_is_left_out(folder, ms):
    opened()
    (file,) = (folder / "operation_times").iterdir()
    with file.open("a") as text:
        text.write(f'{{"signature": "a", "ms": {ms}, "workspace_bytes": 0}}\n')
    cache = TimeCache(HERE)
    assert cache.read() == {}
    assert len(cache.notes) == 1


def test_without_a_home_there_is_a_note(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("LEGROOM_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pathlib.Path.home", homeless)
    cache = TimeCache(HERE)
    assert cache.read() == {}
    cache.add("a", measured(1.0))
    assert "Could not determine home directory" in cache.notes[0]


def test_settings_that_change_kernels_are_told_apart(monkeypatch):
    here = surroundings_of(torch.device("cpu"))
    assert here["threads"] == "1"
    assert here["torch"] == torch.__version__
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    assert surroundings_of(torch.device("cpu")) != here
