"""The limit on a process, in a process of its own: what it allows, and what it says."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from legroom.engine import _limit, _model_limit
from legroom.errors import InfeasibleBudgetError, UsageError
from legroom.plan import PlanOptions

linux = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA is held so on Linux only")

PROGRAM = """
import json, resource
import torch
from legroom.engine._limit import data_bytes, describe_overrun, limit_process

MIB = 2**20

def take(mebibytes):
    return torch.empty(mebibytes * MIB, dtype=torch.uint8)

def said_of(work):
    try:
        work()
    except (RuntimeError, MemoryError) as error:
        return describe_overrun(error).splitlines()[0]

def limits():
    return resource.getrlimit(resource.RLIMIT_DATA)

take(1)
answers = {}

with limit_process(64 * MIB):
    answers["within"], answers["beyond"] = said_of(lambda: take(48)), said_of(lambda: take(80))

held = take(256)
with limit_process(64 * MIB):
    answers["beside what is held"] = said_of(lambda: take(48))

before = limits()
try:
    with limit_process(MIB):
        raise KeyError("on the way")
except KeyError:
    answers["put back"] = [limits() == before, said_of(lambda: take(80))]

present = data_bytes()
with limit_process(64 * MIB) as limit:
    answers["limit"] = [limit - present - 64 * MIB, limits()[0] - limit]

with limit_process(32 * MIB) as outer, limit_process(1024 * MIB) as inner:
    answers["nested"] = [inner - outer, said_of(lambda: take(64))]

with limit_process(4 * MIB):
    answers["python"] = said_of(lambda: bytearray(64 * MIB))

print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@linux
def test_what_exceeds_the_limit_fails(answers):
    assert answers["within"] is None
    expected = "the process met its memory limit: PyTorch asked for 80.0 MiB more."
    assert answers["beyond"] == expected


@linux
def test_what_is_held_already_does_not_count(answers):
    assert answers["beside what is held"] is None


@linux
def test_leaving_puts_the_limit_back(answers):
    assert answers["put back"] == [True, None]


@linux
def test_limit_is_data_now_and_the_bytes(answers):
    beyond, difference = answers["limit"]
    assert 0 <= beyond <= 2**20
    assert difference == 0


@linux
def test_inner_limit_never_raises_the_outer(answers):
    difference, said = answers["nested"]
    assert difference == 0
    assert said.endswith("PyTorch asked for 64.0 MiB more.")


@linux
def test_failures_of_python_itself_are_overruns(answers):
    assert answers["python"] == "the process met its memory limit: an allocation failed."


@pytest.mark.parametrize("text", ["could not create a primitive", "std::bad_alloc"])
def test_failures_that_do_not_name_memory_are_overruns(text):
    said = _limit.describe_overrun(RuntimeError(text))
    assert said is not None
    assert f"got no memory for its own work ({text})" in said
    assert "try: a higher budget" in said


@pytest.mark.parametrize(
    "error", [RuntimeError("shapes cannot be multiplied"), ValueError("std::bad_alloc")]
)
def test_other_errors_are_not_overruns(error):
    assert _limit.describe_overrun(error) is None


@pytest.mark.parametrize("num_bytes", [0, -5])
def test_limit_must_be_positive(num_bytes):
    with pytest.raises(UsageError, match=rf"must be at least 1 byte, got {num_bytes}"):
        with _limit.limit_process(num_bytes):
            pass


def test_systems_without_proc_are_told(monkeypatch):
    monkeypatch.setattr(_limit, "data_bytes", lambda: None)
    with pytest.raises(UsageError, match=r"needs Linux's /proc/self/status"):
        with _limit.limit_process(2**20):
            pass


def test_a_budget_within_the_limit_that_does_not_fit_names_one_that_does():
    inside = InfeasibleBudgetError(budget_bytes=-41 * 2**20, floor_bytes=78 * 2**20)
    error = _model_limit._of_whole_limit(inside, 100 * 2**20, 45 * 2**20)
    assert error.budget_bytes == 100 * 2**20
    assert error.enough_bytes == 123 * 2**20
    assert "45.0 MiB of the budget kept free for the process itself" in str(error)
    assert "no plan fits 100.00 MiB" in str(error)
    assert "a budget of at least 123.0MiB" in str(error)


def test_room_is_made_once_for_a_plan(monkeypatch):
    monkeypatch.setattr(_model_limit, "_checked_data_bytes", lambda: 2**30)
    monkeypatch.setattr(_model_limit, "_tensor_bytes", lambda: 2**30)

    class Planned:
        reserved_bytes = 0

        def report(self):
            return SimpleNamespace(budget_bytes=2**30)

        def reserve(self, num_bytes):
            self.reserved_bytes += num_bytes

    planned = Planned()
    limit = _model_limit.ModelLimit(PlanOptions(budget="1GiB"))
    limit.make_room(planned)
    limit.make_room(planned)  # as after planning again
    assert planned.reserved_bytes == 96 * 2**20
