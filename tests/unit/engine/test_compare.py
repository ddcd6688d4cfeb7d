"""Recordings of steps, and what comparing two of them finds."""

import pytest
import torch
from torch import nn

from legroom.capture import StepFinder
from legroom.engine._compare import compare
from legroom.engine._recording import Recorder
from legroom.engine._snapshot import Snapshot
from tests.unit.engine.training import bytes_of


def make_training():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def record(
    folder,
    *,
    change=lambda model, step: None,
    num_steps=2,
    most_bytes=2**20,
    most_steps=None,
    around=lambda model: None,
):
    model, optimizer = make_training()
    held = around(model)
    recorder = Recorder(folder, most_bytes=most_bytes, most_steps=most_steps)
    finder = StepFinder(lambda: None)
    finder.observer = recorder
    recorder.optimizer_made(optimizer)
    torch.manual_seed(1)
    with finder.watching():
        for step in range(num_steps):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            change(model, step)
            optimizer.step()
            recorder.step_ends()
    del held
    return recorder.save()


class Holder(nn.Module):
    """Somebody who holds a model that is trained beside another one, under other names."""

    def __init__(self, model):
        super().__init__()
        self.other = nn.Linear(2, 2)
        self.main = nn.ModuleDict({"net": model})


@pytest.mark.parametrize(
    "around", [Holder, nn.DataParallel, lambda model: torch.compile(model, backend="eager")]
)
def test_same_training_is_equal_under_other_names(tmp_path, around):
    plain = record(tmp_path / "a")
    found = compare(plain, record(tmp_path / "b", around=around))
    extra = {each.name for each in found.different}
    assert {name.partition(".")[0] for name in extra} <= {"other"}
    assert found.compared["parameters"] == 10
    assert found.compared["buffers"] == 6

    def change(model, step):
        model[1].running_mean[0] += 1
        model[2].weight.grad[0, 0] *= 2

    other = record(tmp_path / "c", around=around, change=change)
    names = [(each.kind, each.name) for each in compare(plain, other).different]
    assert names[:2] == [("gradients", "2.weight"), ("buffers", "1.running_mean")]


def test_gradients_made_within_the_update_are_recorded(tmp_path):
    """As under Lightning, whose optimizers call back for the loss."""
    model, optimizer = make_training()
    recorder = Recorder(tmp_path, most_bytes=2**20)
    finder = StepFinder(lambda: None)
    finder.observer = recorder

    def loss():
        optimizer.zero_grad()
        value = model(torch.randn(8, 4)).square().mean()
        value.backward()
        return value

    with finder.watching():
        optimizer.step(loss)
        recorder.step_ends()
    (step,) = recorder.save().steps
    assert sum(entry.kind == "gradients" for entry in step) == 5


def test_recorder_stops_listening(tmp_path):
    long, short = record(tmp_path / "a", num_steps=3, most_steps=2), record(tmp_path / "b")
    assert len(long.steps) == 2
    assert compare(long, short).different == ()


def test_same_training_is_equal(tmp_path):
    found = compare(record(tmp_path / "a"), record(tmp_path / "b"))
    assert found.steps == 2
    assert found.different == ()
    assert found.errors == {}
    assert found.compared == {
        "losses": 2, "gradients": 10, "buffers": 6, "parameters": 10, "optimizer state": 10,
        "random states": 6,
    }  # fmt: skip


def test_first_difference_is_where_it_began(tmp_path):
    def change(model, step):
        if step == 1:
            model[0].weight.grad[0, 0] += 0.5
            model[2].weight.grad[0, 0] *= -1

    found = compare(record(tmp_path / "a"), record(tmp_path / "b", change=change))
    first, second = found.different[:2]
    assert (first.step, first.kind, first.name) == (2, "gradients", "2.weight")
    assert (second.name, second.module) == ("0.weight", "0")
    assert second.largest_difference == pytest.approx(0.5)
    assert {each.kind for each in found.different} == {
        "gradients", "parameters", "optimizer state",
    }  # fmt: skip


def test_differences_without_values_are_still_found(tmp_path):
    def change(model, step):
        model[0].weight.grad += 1

    found = compare(
        record(tmp_path / "a", most_bytes=0), record(tmp_path / "b", change=change, most_bytes=0)
    )
    assert found.different[0].name == "0.weight"
    assert found.different[0].largest_difference is None


def test_a_missing_gradient_is_a_difference(tmp_path):
    def change(model, step):
        model[1].weight.grad = None

    found = compare(record(tmp_path / "a"), record(tmp_path / "b", change=change), tolerance=0.1)
    assert ("gradients", "1.weight") in {(each.kind, each.name) for each in found.different}


def test_negative_zero_is_not_zero(tmp_path):
    def change(sign):
        def set_zero(model, step):
            model[0].bias.grad.zero_().mul_(sign)

        return set_zero

    found = compare(
        record(tmp_path / "a", change=change(1), num_steps=1),
        record(tmp_path / "b", change=change(-1), num_steps=1),
    )
    assert [each.name for each in found.different if each.kind == "gradients"] == ["0.bias"]


def test_tolerance_lets_rounding_pass_but_not_errors(tmp_path):
    def change(factor):
        def scale(model, step):
            for param in model.parameters():
                param.grad *= factor

        return scale

    plain = record(tmp_path / "a", num_steps=1)
    near = record(tmp_path / "b", change=change(1 + 1e-5), num_steps=1)
    far = record(tmp_path / "c", change=change(1.01), num_steps=1)
    assert compare(plain, near).different
    assert compare(plain, near, tolerance=1e-3).different == ()
    assert compare(plain, near).errors["gradients"].relative_error == pytest.approx(1e-5, rel=0.1)
    assert {each.kind for each in compare(plain, far, tolerance=1e-3).different} >= {"gradients"}


def test_not_a_number_is_never_within_tolerance(tmp_path):
    def change(model, step):
        model[0].weight.grad[0, 0] = float("nan")

    found = compare(record(tmp_path / "a"), record(tmp_path / "b", change=change), tolerance=0.1)
    assert found.different[0].largest_difference is None
    same = record(tmp_path / "c", change=change)
    assert compare(same, record(tmp_path / "d", change=change)).different == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64, torch.bool, torch.int8])
def test_every_type_is_recorded(tmp_path, dtype):
    recorder = Recorder(tmp_path, most_bytes=2**20)
    model = nn.Linear(2, 2)
    model.register_buffer("other", torch.ones(3, 2, dtype=dtype).t())
    recorder.optimizer_made(torch.optim.SGD(model.parameters()))
    recorder.step_ends()
    recording = recorder.save()
    (entry,) = [entry for entry in recording.steps[0] if entry.kind == "buffers"]
    assert (entry.dtype, entry.shape) == (str(dtype).removeprefix("torch."), (2, 3))
    assert recording.value(entry).tolist() == [1] * 6
    assert not recorder.unreadable


def test_snapshot_puts_everything_back():
    model, optimizer = make_training()
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    snapshot = Snapshot([model], [optimizer], [schedule])
    weights = {name: bytes_of(tensor) for name, tensor in model.state_dict().items()}
    gradients = [bytes_of(param.grad) for param in model.parameters()]
    momenta = [bytes_of(state["momentum_buffer"]) for state in optimizer.state.values()]
    drawn = torch.rand(1)
    for _ in range(2):
        snapshot.restore()
        assert torch.rand(1) == drawn
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    snapshot.restore()
    assert {name: bytes_of(tensor) for name, tensor in model.state_dict().items()} == weights
    assert [bytes_of(param.grad) for param in model.parameters()] == gradients
    assert [bytes_of(s["momentum_buffer"]) for s in optimizer.state.values()] == momenta
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert schedule.last_epoch == 0
