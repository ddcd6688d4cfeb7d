"""Plans that hold tensors in host memory, carried out beside a device with queues of its own."""

import random
import sys

import pytest
import torch

import legroom
from legroom import tiers, ways
from legroom.errors import UsageError
from legroom.meter import TierSpeed
from tests.unit.engine.test_moved import Masked, backward
from tests.unit.engine.training import Net, check_same
from tests.unit.tiers.simulated_device import Beside

SPEED = TierSpeed(*(2e5, 2e5, 0.1, 0.1), *(2e5, 2e5, 0.1, 0.1), compute_slowdown=1.0)
MOVING = {"budget": "100%", "without": ["remake", "replay"], "is_remade": False}


@pytest.fixture
def no_device():
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")


@pytest.fixture
def device(request):
    """Copies are as late as is allowed, or as early as dice with a seed say."""
    seed = getattr(request, "param", None)
    return Beside(None if seed is None else random.Random(seed))


@pytest.fixture
def host(device, monkeypatch):
    """Host memory for what this machine computes, as if it were an accelerator."""
    reports = sys.modules["legroom.plan._report"]  # `legroom.plan` itself is the function
    monkeypatch.setattr(reports, "tier_speed", lambda tier, **options: SPEED)
    monkeypatch.setattr(ways.Host, "is_for", classmethod(lambda way, device: True))
    with tiers.use(tiers.Host(device)) as used:
        yield used
        assert used.in_use().num_slots == 0
        used.close()
    assert not any(queue.work for queue in device.queues.values())


@pytest.mark.parametrize(
    ("stash", "device"), [("50%", 1), ("5%", None), ("5%", 2)], indirect=["device"]
)
def test_training_from_host_memory_has_the_same_bits(host, stash):
    torch.manual_seed(0)
    handle = check_same(Net(), backward, stash=stash, host=True, **MOVING)
    report = handle.report()
    assert report.ways["host"]["tensors"] > 0
    assert sum(handle.plan.moved_bytes["host"]) > 0
    assert report.measured_peak_bytes <= report.budget_bytes


def test_a_device_that_does_not_wait_is_noticed(host, device):
    """Backward reads before the copies have come."""
    torch.manual_seed(0)
    device.ignored = ("compute", "inward")
    with pytest.raises(AssertionError, match="grad"):
        check_same(Net(), backward, stash="5%", host=True, **MOVING)
    device.finish()


def test_what_is_packed_first_is_moved_packed(host):
    torch.manual_seed(0)
    value = torch.randn(16384, 64)

    def step_of(model, step):
        loss = model(value)
        loss.backward()
        return loss

    handle = check_same(
        Masked(), step_of, budget="100%", stash="1%", host=True,
        ways=["host", "bits", "sign"], is_remade=False,
    )  # fmt: skip
    assert {"bits on host", "sign on host"} & set(handle.report().ways)


def test_both_tiers_have_the_same_bits(host, tmp_path):
    torch.manual_seed(0)
    with tiers.use(folder=tmp_path) as disk:
        handle = check_same(Net(num_blocks=6), backward, stash="5%", host=True, disk=True, **MOVING)
        assert disk.in_use().num_slots == 0
    assert set(handle.plan.moved_bytes) == {"host", "disk"}


def test_a_step_that_is_no_accelerators_is_refused(host, monkeypatch):
    monkeypatch.setattr(ways.Host, "is_for", classmethod(lambda way, device: device != "cpu"))
    model = Net()
    handle = legroom.fit(model, stash="20%", host=True)
    with pytest.raises(UsageError, match=r"the step is on 'cpu', and 'host' is for tensors of an"):
        backward(model, 0)
    handle.undo()


def test_compiled_kernels_would_overwrite_what_is_on_its_way(host):
    options = {"stash": "20%", "executor": "inductor", "exactness": "rounding"}
    with pytest.raises(UsageError, match="'inductor' cannot carry out 'host'"):
        legroom.fit(Net(), host=True, **options)


@pytest.mark.usefixtures("no_device")
@pytest.mark.parametrize("asked", [{"host": True}, {"ways": ["host"]}])
def test_without_an_accelerator_nothing_is_begun(asked):
    def step():
        raise AssertionError("it ran")

    model = Net()
    for act in (
        lambda: legroom.fit(model, budget="50%", **asked),
        lambda: legroom.verify(step, budget="50%", **asked),
        lambda: legroom.plan(step, **asked),
    ):
        with pytest.raises(
            UsageError, match=r"the host tier is for tensors of an accelerator"
        ) as e:
            act()
        assert "try: the disk" in str(e.value)
    backward(model, 0)
