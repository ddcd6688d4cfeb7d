"""Tiers of all kinds, closed at the end of a test."""

import pytest

from legroom.tiers import Disk
from tests.unit.tiers.faulty_file import FaultyFile


@pytest.fixture
def open_disk(tmp_path):
    opened = []

    def open_one(*, direct=None, faulty=False, limit_bytes=None, **options):
        if faulty or limit_bytes is not None:
            file = FaultyFile(tmp_path, direct=direct, limit_bytes=limit_bytes)
            tier = Disk(file, **options)
            tier.file = file
        else:
            tier = Disk.open(tmp_path, direct=direct, allow_tmpfs=True, **options)
        opened.append(tier)
        return tier

    yield open_one
    for tier in opened:
        if tier.is_usable:
            tier.close()


@pytest.fixture
def disk(open_disk):
    return open_disk()
