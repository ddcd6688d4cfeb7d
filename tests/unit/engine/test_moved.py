"""Plans that hold tensors on the disk, carried out: the same bits, and nothing left behind."""

import dataclasses
import sys
import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import legroom
from legroom import tiers
from legroom.errors import TierError, TierSpaceError, UsageError
from legroom.meter import TierSpeed
from tests.unit.engine.training import Block, Net, bytes_of, check_same, sgd
from tests.unit.tiers.faulty_file import FaultyFile

ROWS, WIDTH = 2048, 16
"""So that most tensors are worth moving."""


def batch(step):
    numbers = torch.Generator().manual_seed(100 + step)
    value = torch.randn(ROWS, WIDTH, generator=numbers)
    return value, torch.randint(0, 8, (ROWS,), generator=numbers)


def backward(model, step):
    loss = model(*batch(step))
    loss.backward()
    return loss


SPEED = TierSpeed(*(2e5, 1e5, 0.1, 0.1), *(2e5, 1e5, 0.1, 0.1), compute_slowdown=1.2)
"""Slow enough that packing first pays, whatever the machine is."""


@pytest.fixture(autouse=True)
def tier(tmp_path, monkeypatch):
    reports = sys.modules["legroom.plan._report"]  # `legroom.plan` itself is the function
    monkeypatch.setattr(reports, "tier_speed", lambda tier, **options: SPEED)
    with tiers.use(folder=tmp_path) as used:
        yield used
        assert used.in_use().num_slots == 0


def ways_of(handle):
    return handle.report().ways


@pytest.mark.parametrize("stash", ["50%", "5%"])
def test_training_from_the_disk_has_the_same_bits(stash):
    torch.manual_seed(0)
    handle = check_same(
        Net(), backward, budget="100%", stash=stash, disk=True, without=["remake", "replay"],
        is_remade=False,
    )  # fmt: skip
    assert ways_of(handle)["disk"]["tensors"] > 0
    assert sum(handle.plan.moved_bytes["disk"]) > 0
    report = handle.report()
    assert report.measured_peak_bytes <= report.budget_bytes


def test_the_floor_is_lower_with_the_disk():
    torch.manual_seed(0)
    floors = {}
    for disk in (False, True):
        handle = check_same(
            Net(num_blocks=6), backward, budget="lowest", disk=disk, is_remade=False
        )
        floors[disk] = handle.report().measured_peak_bytes
        assert floors[disk] <= handle.report().budget_bytes
    assert floors[True] < floors[False]


def test_waiting_for_everything_has_the_same_bits():
    torch.manual_seed(0)
    with tiers.use(synchronous=True):
        check_same(
            Net(), backward, budget="100%", stash="5%", disk=True, without=["remake", "replay"],
            is_remade=False,
        )  # fmt: skip


def accumulated(model, step):
    for part in (2 * step, 2 * step + 1):
        loss = model(*batch(part))
        loss.backward()
    return loss


def together(model, step):
    loss = model(*batch(2 * step)) + model(*batch(2 * step + 1))
    loss.backward()
    return loss


@pytest.mark.parametrize("gradients", [accumulated, together])
def test_several_calls_in_a_step_have_the_same_bits(gradients):
    torch.manual_seed(0)
    handle = check_same(
        Net(), gradients, budget="100%", stash="40%", disk=True, without=["remake", "replay"],
        is_remade=False,
    )  # fmt: skip
    assert ways_of(handle)["disk"]["tensors"] > 0


class Masked(nn.Module):
    """A dropout whose mask can be packed before it is moved."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, value):
        for layer in self.layers:
            value = value + F.dropout(F.relu(layer(value)), 0.1)
        return value.square().mean()


def test_what_is_packed_first_is_moved_packed():
    torch.manual_seed(0)
    value = torch.randn(16384, 64)

    def step_of(model, step):
        loss = model(value)
        loss.backward()
        return loss

    handle = check_same(
        Masked(), step_of, budget="100%", stash="1%", disk=True,
        ways=["disk", "bits", "sign"], is_remade=False,
    )  # fmt: skip
    assert {"bits on disk", "sign on disk"} & set(ways_of(handle))


@pytest.fixture
def moving():
    """A model whose plan moves tensors, after its first steps."""
    torch.manual_seed(0)
    model = Net(dropout=0.0)
    optimizer = sgd(model)
    handle = legroom.fit(
        model, stash="20%", disk=True, without=["remake", "replay"], optimizer=optimizer
    )
    for step in range(3):
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()
    yield model, handle
    handle.undo()


def test_a_graph_that_nobody_wants_leaves_nothing(moving, tier):
    model, _ = moving
    loss = model(*batch(0))
    assert tier.in_use().num_slots > 0
    del loss
    assert tier.in_use().num_slots == 0


def test_several_forwards_may_wait_for_one_backward(moving, tier):
    model, handle = moving
    losses = [model(*batch(step)) for step in range(3)]
    assert tier.in_use().num_slots >= 3
    sum(losses).backward()
    del losses
    fitted = [param.grad.clone() for param in model.parameters()]
    handle.undo()
    model.zero_grad()
    sum(model(*batch(step)) for step in range(3)).backward()
    for ours, param in zip(fitted, model.parameters(), strict=True):
        torch.testing.assert_close(ours, param.grad)


def test_a_graph_that_is_kept_can_be_used_again(moving):
    model, _ = moving
    loss = model(*batch(0))
    loss.backward(retain_graph=True)
    once = [param.grad.clone() for param in model.parameters()]
    loss.backward()
    for first, twice in zip(once, model.parameters(), strict=True):
        torch.testing.assert_close(2 * first, twice.grad)


def test_an_exception_between_forward_and_backward_is_harmless(moving, tier):
    model, _ = moving

    def fails():
        kept = model(*batch(0))
        raise RuntimeError("no backward today", kept.shape)

    with pytest.raises(RuntimeError, match="no backward today"):
        fails()
    assert tier.in_use().num_slots == 0
    backward(model, 1)


def test_many_steps_take_no_more_of_the_disk(moving, tier):
    model, handle = moving
    backward(model, 0)
    before = tier.in_use()
    sizes = handle.plan.moved_bytes["disk"]
    assert before.reserved_bytes <= sum(sizes) + 8192 * len(sizes)  # nothing was added later
    for step in range(20):
        backward(model, step)
        model.zero_grad()
    assert tier.in_use() == before


def test_room_is_set_aside_before_training(monkeypatch):
    model = Net()

    def no_room(self, num_bytes, *, num_tensors):
        raise TierSpaceError(folder="there", wanted_bytes=num_bytes, free_bytes=0)

    monkeypatch.setattr(tiers.Disk, "reserve", no_room)
    handle = legroom.fit(
        model, stash="20%", disk=True, without=["remake", "replay"], optimizer=sgd(model)
    )
    before = [bytes_of(param) for param in model.parameters()]
    try:
        with pytest.raises(TierError, match="make room there"):
            model(*batch(0))
    finally:
        handle.undo()
    assert [bytes_of(param) for param in model.parameters()] == before
    backward(model, 0)


def test_compiled_kernels_would_overwrite_what_is_on_its_way():
    options = {"stash": "20%", "executor": "inductor", "exactness": "rounding"}
    with pytest.raises(UsageError, match="'inductor' cannot carry out 'disk'"):
        legroom.fit(Net(), disk=True, **options)


class Returning(nn.Module):
    """Returns, beside the loss, what it reads in the middle of its way."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(WIDTH, 0.0) for _ in range(4))

    def forward(self, value):
        first = torch.tanh(self.blocks[0](value))
        value = first
        for block in self.blocks[1:]:
            value = block(value)
        return value.square().mean(), first


@pytest.fixture
def returning(tmp_path):
    """A model that returns what is moved; its disk; what its gradients must be."""
    torch.manual_seed(0)
    model, value = Returning(), batch(0)[0]
    model(value)[0].backward()
    expected = [bytes_of(param.grad) for param in model.parameters()]
    file = FaultyFile(tmp_path)
    disk = tiers.Disk(file)
    with tiers.use(disk), disk.closing():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        handle = legroom.fit(model, budget="100%", disk=True, preset="vdnn", optimizer=optimizer)
        model(value)[0].backward()
        optimizer.step()  # until then it is seen of which outputs gradients are taken
        model.zero_grad()
        model(value)[0].backward()
        yield model, handle, value, file, expected
        handle.undo()


def gradients_of(model):
    return [bytes_of(param.grad) for param in model.parameters()]


def test_what_is_returned_may_be_changed_while_the_disk_is_slow(returning):
    model, handle, value, file, expected = returning
    (program,) = handle._latest.step_plan.programs.values()
    assert any("tanh" in each.label and each.settled_before == "" for each in program.encoded)
    file.on_write = lambda pieces, offset: time.sleep(0.02)
    model.zero_grad()
    loss, first = model(value)
    with torch.no_grad():
        first.add_(1.0)
    loss.backward()
    assert gradients_of(model) == expected


def test_what_is_returned_may_leave_before_forward_ends(returning):
    """It is returned through a view at the end of forward, which is no reader."""
    model, handle, value, _, expected = returning
    step_plan = handle._latest.step_plan
    ((piece, program),) = step_plan.programs.items()
    encoded = tuple(
        dataclasses.replace(each, settled_before="native_layer_norm_3")
        if "tanh" in each.label
        else each
        for each in program.encoded
    )
    assert encoded != program.encoded
    step_plan.programs[piece] = dataclasses.replace(program, encoded=encoded)
    handle.compile_again(step_plan)
    model.zero_grad()
    model(value)[0].backward()
    assert gradients_of(model) == expected
