"""Copies of this process, of which nothing remains but the answer."""

import time

import pytest

from legroom.capture._fork import can_fork, in_copy
from legroom.errors import CaptureTimeError

pytestmark = pytest.mark.skipif(not can_fork(), reason="this process cannot be copied")


def test_a_copy_that_takes_too_long_is_ended():
    with pytest.raises(CaptureTimeError, match="longer than planning may take"):
        in_copy(lambda report: time.sleep(600), most_s=0.0)


def test_a_copy_within_its_time_answers():
    assert in_copy(lambda report: 7, most_s=600.0) == 7
