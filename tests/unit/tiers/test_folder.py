import os
import tempfile
from pathlib import Path

import pytest

from legroom.errors import TierError
from legroom.tiers import Disk, SystemFile, file_system_of
from legroom.tiers import _folder as folder_module
from legroom.tiers._folder import choose_folder


def test_an_argument_goes_before_the_variable(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.setenv("LEGROOM_DISK", str(tmp_path / "b"))
    assert choose_folder(tmp_path / "a", allow_tmpfs=True) == tmp_path / "a"
    assert choose_folder(None, allow_tmpfs=True) == tmp_path / "b"
    monkeypatch.delenv("LEGROOM_DISK")
    assert choose_folder(None, allow_tmpfs=True) == Path(tempfile.gettempdir())


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(TierError, match=r"nowhere' is not there(.|\n)*LEGROOM_DISK"):
        Disk.open(tmp_path / "nowhere")


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no tmpfs on this machine")
def test_memory_is_not_taken_for_a_disk():
    assert file_system_of(Path("/dev/shm")) == "tmpfs"
    with pytest.raises(TierError, match=r"is on a tmpfs(.|\n)*LEGROOM_DISK=/var/tmp"):
        Disk.open("/dev/shm")


def test_unknown_file_systems_are_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "file_system_of", lambda folder: "")
    assert choose_folder(tmp_path) == tmp_path


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(TierError, match="cannot make a file in"):
        SystemFile.open(tmp_path)


def test_denied_files_are_an_error_with_a_cause(tmp_path, monkeypatch):
    def denied(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(TierError, match=r"cannot make a file in .*: Permission denied") as caught:
        SystemFile.open(tmp_path)
    assert isinstance(caught.value.__cause__, PermissionError)


def test_the_file_has_no_name(tmp_path):
    with_name = []
    for direct in (None, False):
        file = SystemFile.open(tmp_path, direct=direct)
        file.grow(0, 1 << 20)
        with_name += list(tmp_path.iterdir())
        file.close()
    assert with_name == []


def test_names_go_where_nameless_files_are_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr("legroom.tiers._file._NAMELESS", 0)
    file = SystemFile.open(tmp_path, direct=False)
    assert list(tmp_path.iterdir()) == []
    assert file.write([memoryview(b"abc")], 0) == 3
    file.close()


def test_direct_can_be_insisted_on(tmp_path, monkeypatch):
    monkeypatch.setattr("legroom.tiers._file._carries_blocks", lambda file: False)
    assert not SystemFile.open(tmp_path).is_direct
    with pytest.raises(TierError, match="cannot be read and written past the page cache"):
        SystemFile.open(tmp_path, direct=True)
