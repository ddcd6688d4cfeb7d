"""`legroom.verify`: equal training is found equal, and what is wrong is found and named."""

import json

import pytest
import torch
from torch import nn

import legroom
from legroom.engine.graph._executors import Eager
from legroom.errors import NotRepeatableError, UsageError
from tests.unit.engine.training import bytes_of

aten = torch.ops.aten


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(32, 32)
        self.norm = nn.BatchNorm1d(32)

    def forward(self, value):
        return nn.functional.gelu(self.norm(self.fc(value)))


@pytest.fixture
def training():
    """A model, its optimizer, and a step on a fixed batch with dropout."""
    model = nn.Sequential(Block(), Block(), nn.Dropout(0.1), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters())
    data, target = torch.randn(256, 32), torch.randint(0, 4, (256,))

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), target).backward()
        optimizer.step()

    return model, optimizer, step


def spoil(monkeypatch, target, change):
    """Let the eager executor run `change` on the nodes of one operation, in backward only."""
    compiled = Eager.compile

    def compile_spoiled(self, graph, inputs):
        is_backward = any(
            n.target is aten.native_batch_norm_backward.default for n in graph.graph.nodes
        )
        for node in graph.graph.nodes if is_backward else ():
            if node.target is target:
                change(node)
        return compiled(self, graph, inputs)

    monkeypatch.setattr(Eager, "compile", compile_spoiled)


def test_equal_training_is_equal(training, tmp_path):
    model, optimizer, step = training
    before = [bytes_of(tensor) for tensor in model.state_dict().values()]
    state = bytes_of(torch.get_rng_state())
    result = legroom.verify(step, model=model, activations="80%", steps=2)
    assert result
    assert result.different == ()
    assert result.compared == {
        "losses": 2, "gradients": 20, "buffers": 12, "parameters": 20, "optimizer state": 60,
        "random states": 6,
    }  # fmt: skip
    assert result.run.measured_peak_bytes <= result.run.budget_bytes
    assert result.run.ways["remake"]["tensors"] > 0
    # Everything is as it was, and the model plain.
    assert [bytes_of(tensor) for tensor in model.state_dict().values()] == before
    assert bytes_of(torch.get_rng_state()) == state
    assert not optimizer.state
    assert "_compiled_call_impl" not in vars(model)
    result.save(tmp_path / "verify.json")
    saved = json.loads((tmp_path / "verify.json").read_text())
    assert saved["schema"] == "legroom.verify/1"
    assert saved["equal"] is True


def test_models_are_found_by_their_calls(training):
    _, _, step = training
    result = legroom.verify(step, activations="80%", steps=1)
    assert result.equal, result.different
    assert result.run.ways["remake"]["tensors"] > 0


def test_wrong_backward_is_named(training, monkeypatch):
    model, _, step = training
    spoil(
        monkeypatch,
        aten.gelu_backward.default,
        lambda node: setattr(node, "kwargs", {"approximate": "tanh"}),
    )
    result = legroom.verify(step, model=model, activations="80%", steps=2)
    assert not result.equal
    first = result.different[0]
    assert (first.step, first.kind) == (1, "gradients")
    assert first.name == "1.norm.bias"  # the last layer before the last wrong gelu
    assert first.module == "1.norm"
    assert first.way == "remake"
    assert first.line.startswith("tests/unit/engine/test_verify.py:")
    assert 0 < first.relative_error < 0.1
    assert first.largest_difference > 0
    assert all(each.kind != "losses" for each in result.different if each.step == 1)
    assert result.errors["gradients"].relative_error > 0


def test_dropout_drawn_again_is_found(training, monkeypatch):
    model, _, step = training
    compiled = Eager.compile

    def draws_once_more(self, graph, inputs):
        run = compiled(self, graph, inputs)

        def run_and_draw(args):
            torch.rand(1)
            return run(args)

        run_and_draw._boxed_call = True
        return run_and_draw

    monkeypatch.setattr(Eager, "compile", draws_once_more)
    result = legroom.verify(step, model=model, activations="80%", steps=1)
    assert not result.equal
    assert {each.name for each in result.different if each.kind == "random states"} == {"torch"}


def test_rounding_allows_what_bitwise_does_not(training, monkeypatch):
    model, _, step = training

    def round_otherwise(node):
        with node.graph.inserting_after(node):
            once = node.graph.call_function(aten.mul.Tensor, (node, 1 + 1e-6))
        node.replace_all_uses_with(once, delete_user_cb=lambda user: user is not once)

    spoil(monkeypatch, aten.gelu_backward.default, round_otherwise)
    assert not legroom.verify(step, model=model, activations="90%", steps=1).equal
    result = legroom.verify(step, model=model, activations="90%", steps=2, exactness="rounding")
    assert result.equal, result.different
    assert result.tolerance == 1e-3
    assert 0 < result.errors["gradients"].relative_error < 1e-4
    strict = legroom.verify(
        step, model=model, activations="90%", steps=1, exactness="rounding", tolerance=1e-9
    )
    assert not strict.equal
    assert strict.tolerance == 1e-9


def test_a_step_that_moves_on_is_refused(training):
    model, optimizer, _ = training
    batches = iter(torch.randn(8, 64, 32))

    def step():
        optimizer.zero_grad()
        model(next(batches)).square().mean().backward()
        optimizer.step()

    with pytest.raises(NotRepeatableError, match="fixed batch instead of the next one"):
        legroom.verify(step, model=model, activations="80%", steps=1)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({}, "say how much memory there is"),
        ({"budget": "50%", "steps": 0}, "0 steps leave nothing to compare"),
        ({"budget": "50%", "model": "net"}, "model must be a Module, not str"),
        ({"budget": "50%", "executor": "inductor"}, "changes rounding"),
        ({"budget": "50%", "tolerance": 0.01}, "'bitwise' compares bits, so it has no tolerance"),
        (
            {"budget": "50%", "exactness": "rounding", "tolerance": -1.0},
            "tolerance -1.0 is no relative error; write a number above 0",
        ),
    ],
)
def test_misuse_is_told(training, keywords, message):
    with pytest.raises(UsageError, match=message):
        legroom.verify(training[2], **keywords)


def test_plan_made_in_the_last_step_is_measured(training):
    """What the loop holds is seen in the first step; the plan of the whole is made after it."""
    model, optimizer, _ = training
    data, target = torch.randn(4096, 32), torch.randint(0, 4, (4096,))

    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data), target)
        beside = torch.ones(2**17)
        loss.backward()
        optimizer.step()
        del beside

    result = legroom.verify(step, model=model, budget="4.5MiB", steps=1)
    assert result
    assert result.run.measured_peak_bytes <= result.run.budget_bytes
    assert any("not compared, to measure the plan that was made last" in n for n in result.notes)
    assert result.steps == 1


def test_one_step_is_measured_too(training):
    model, _, step = training
    result = legroom.verify(step, model=model, activations="80%", steps=1)
    assert result.steps == 1
    assert result.run.measured_peak_bytes is not None
