"""Faults in fitted training: plain's bits or a clear error, and nothing left behind."""

import logging
import os
import sys
from pathlib import Path

import pytest
import torch

import legroom
from benchmarks import faults
from benchmarks.faults import FAULTS, MOVING, Training, demo_loss, demo_model, training
from legroom import tiers
from legroom.errors import TierError, TierSpaceError
from legroom.meter import TierSpeed
from tests.unit.tiers.faulty_file import FaultyFile, failing

SPEED = TierSpeed(*(2e5, 1e5, 0.1, 0.1), *(2e5, 1e5, 0.1, 0.1), compute_slowdown=1.2)
SLOW = ("full when planned", "kill -9")
"""A model is planned three times; a process starts three times."""

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture(scope="module", autouse=True)
def _speed():
    """Whatever the machine is, the plan is the same."""
    reports = sys.modules["legroom.plan._report"]  # `legroom.plan` itself is the function
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reports, "tier_speed", lambda tier, **options: SPEED)
        yield


@pytest.fixture(scope="module")
def run():
    with training(demo_model(), demo_loss) as made:
        yield made


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in FAULTS],
)
def test_every_fault_ends_as_it_should(run, name):
    seen = FAULTS[name].act(run)
    assert FAULTS[name].is_as_it_should(seen), seen
    assert run.handle.report().replans == 0


@pytest.fixture
def faulty(tmp_path):
    """A tier that can fail, in the place of the process's."""
    file = FaultyFile(tmp_path)
    disk = tiers.Disk(file)
    with tiers.use(disk), disk.closing():
        yield disk, file
        file.on_write = file.on_read = None


@pytest.fixture
def fresh(faulty):
    """A model that was never called."""
    disk, file = faulty
    made = Training(demo_model(), demo_loss, disk, file)
    made.options = {**MOVING, "stash": "60%"}
    made.handle = legroom.fit(made.model, optimizer=made.optimizer, **made.options)
    yield made
    made.handle.undo()


def test_a_plan_that_finds_no_room_is_tried_again(fresh):
    """While it is full, every call says so; what was compiled before is not called any more."""
    assert fresh.is_right()
    fresh.file.limit_bytes = fresh.disk.in_use().reserved_bytes
    report = fresh.handle.report()
    moved = report.ways["disk"]["bytes"]
    with pytest.raises(TierSpaceError):
        fresh.handle.reserve(report.budget_bytes - report.predicted_peak_bytes + (1 << 20))
    for _ in range(2):
        with pytest.raises(TierSpaceError, match="the disk tier needs"):
            fresh.gradients(fresh.model)
    fresh.file.limit_bytes = None
    assert fresh.is_right()
    assert fresh.is_right()
    assert fresh.handle.report().ways["disk"]["bytes"] > moved


@pytest.mark.slow
def test_failed_steps_are_not_measured(fresh):
    for verb in ("write", "read"):
        setattr(fresh.file, f"on_{verb}", failing(5, times=1))
        with pytest.raises(TierError, match=r"'[a-zA-Z]+[.\w]+' .*could not be"):
            fresh.gradients(fresh.model)
        assert fresh.is_right()
    for _ in range(3):
        assert fresh.is_right()
    report = fresh.handle.report()
    assert report.replans == 0
    assert report.measured_peak_bytes <= report.budget_bytes


@pytest.mark.skipif(not os.path.isdir("/sys/kernel"), reason="needs a folder that nobody may use")
def test_a_folder_that_may_not_be_written_to_is_named(run):
    model = demo_model()
    handle = legroom.fit(model, optimizer=faults.sgd(model), **{**MOVING, "disk": "/sys/kernel"})
    before = [param.detach().clone() for param in model.parameters()]
    try:
        for _ in range(2):
            with pytest.raises(
                TierError, match="the disk tier cannot make a file in '/sys/kernel'"
            ):
                demo_loss(model, 0)
    finally:
        handle.undo()
    demo_loss(model, 0).backward()
    assert all(map(torch.equal, before, model.parameters()))
    assert tiers.disk() is run.disk  # others go on where they are
    assert run.is_right()


@pytest.mark.slow
def test_a_lossy_plan_is_checked_again_after_a_fault(faulty):
    """What the check changes is put back, whatever it ends in."""
    disk, file = faulty
    model = demo_model()
    options = {**MOVING, "stash": "10%", "exactness": "lossy"}
    handle = legroom.fit(model, optimizer=faults.sgd(model), **options)
    before = [param.detach().clone() for param in model.parameters()]
    state = torch.get_rng_state()
    file.on_read = failing(5, times=1)
    try:
        with pytest.raises(TierError, match="could not be read from tier 'disk'"):
            demo_loss(model, 0)
        assert all(map(torch.equal, before, model.parameters()))
        assert all(param.grad is None for param in model.parameters())
        assert torch.equal(state, torch.get_rng_state())
        demo_loss(model, 0).backward()
        assert handle.report().gradient_error > 0
    finally:
        handle.undo()
    assert disk.in_use().num_slots == 0


def test_a_forked_child_has_its_tier_in_the_same_folder(run):
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            demo_loss(run.model, 0).backward()
            os.write(theirs, str(tiers.disk().folder).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        assert Path(pipe.read()) == run.disk.folder
    os.waitpid(child, 0)
    assert run.is_right()


def test_a_disk_that_does_not_answer_is_named(run, monkeypatch, caplog):
    monkeypatch.setattr("legroom.tiers._engine._LOOKING_UP_SECONDS", 0.01)
    monkeypatch.setattr("legroom.tiers._engine._LATE_SECONDS", 0.02)
    record = caplog.handler.emit

    def emit(said):
        record(said)
        run.file.gate.set()

    monkeypatch.setattr(caplog.handler, "emit", emit)
    run.file.gate.clear()
    with caplog.at_level(logging.WARNING, "legroom"):
        assert run.is_right()
    said = caplog.messages[0]
    assert str(run.disk.folder) in said
    assert "has not answered for 0.02 s" in said
    assert any(f"'{label}' is being written" in said for label in run.labels)
