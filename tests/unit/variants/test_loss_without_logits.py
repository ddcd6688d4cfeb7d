"""A last layer and its cross entropy are found in a graph, whoever wrote them."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import legroom
from legroom.capture import capture_step
from legroom.plan import Judge, PlanOptions
from legroom.variants import LossWithoutLogits

CLASSES, WIDTH, ROWS, LENGTH = 12000, 16, 8, 20
LOGITS_BYTES = ROWS * LENGTH * CLASSES * 4


class Model(nn.Module):
    """Tied weights, and a loss as given."""

    def __init__(self, loss, *, has_bias=False):
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, CLASSES, bias=has_bias)
        self.last.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.loss = loss

    def forward(self, tokens):
        return self.loss(self.last(torch.tanh(self.hidden(self.embedding(tokens)))), tokens)


def shifted(logits, tokens, **options):
    rows = logits[:, :-1].contiguous().view(-1, CLASSES)
    return F.cross_entropy(rows.float(), tokens[:, 1:].reshape(-1), **options)


def by_positions(logits, tokens):
    return F.cross_entropy(logits[..., :-1, :].flatten(0, 1), tokens[..., 1:].flatten())


def by_logarithms(logits, tokens):
    rows = F.log_softmax(logits.view(-1, CLASSES), dim=-1)
    return F.nll_loss(rows, tokens.view(-1), ignore_index=3)


def weighed(logits, tokens):
    weights = torch.linspace(0.5, 1.5, CLASSES)
    return F.cross_entropy(logits.view(-1, CLASSES), tokens.view(-1), weights, reduction="sum")


LOSSES = {
    "shifted": shifted,
    "smoothed": lambda logits, tokens: shifted(logits, tokens, label_smoothing=0.1),
    "row by row": lambda logits, tokens: shifted(logits, tokens, reduction="none").mean(),
    "by positions": by_positions,
    "by logarithms": by_logarithms,
    "weighed": weighed,
}


def tokens_of():
    return torch.randint(CLASSES, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))


def operations(model, **options):
    tokens = tokens_of()

    def step():
        output = model(tokens)
        (output[0] if isinstance(output, tuple) else output).backward()

    planned = capture_step(step, exactness="rounding", **options).planned
    return [each.name for each in planned.operations], planned.not_captured


def rewritten(model):
    return operations(model, rewrites=(LossWithoutLogits.apply,))


@pytest.mark.parametrize("name", LOSSES)
def test_it_is_found_however_it_is_written(name):
    model = Model(LOSSES[name], has_bias=name == "smoothed")
    names, notes = rewritten(model)
    assert "legroom.linear_cross_entropy_backward.default" in names
    assert not [each for each in names if "softmax" in each]
    assert not [each for each in notes if each.what == "a rewrite"]


def gradients_of(model, tokens):
    model.zero_grad()
    loss = model(tokens)
    loss.backward()
    return loss.item(), {key: param.grad.double() for key, param in model.named_parameters()}


@pytest.mark.parametrize("name", ["smoothed"])
def test_gradients_are_as_good_as_those_of_eager(name):
    torch.manual_seed(0)
    model, tokens = Model(LOSSES[name], has_bias=True), tokens_of()
    loss, eager = gradients_of(model, tokens)
    _, exact = gradients_of(copy.deepcopy(model).double(), tokens)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    fitted = legroom.fit(model, optimizer=optimizer, budget="60%", exactness="rounding")
    for _ in range(3):
        optimizer.zero_grad()
        model(tokens).backward()
        optimizer.step()
    report = fitted.report()
    found_loss, found = gradients_of(model, tokens)
    fitted.undo()
    assert found_loss == pytest.approx(loss, rel=1e-6)
    for key, gradient in exact.items():
        allowed = max(1e-5 * gradient.norm(), 2 * (eager[key] - gradient).norm())
        assert (found[key] - gradient).norm() <= allowed, key
    assert report.plain_peak_bytes - report.measured_peak_bytes > 1.5 * LOGITS_BYTES
    assert report.measured_peak_bytes == pytest.approx(report.predicted_peak_bytes, rel=0.01)


def test_logits_that_are_returned_are_kept_once_and_that_is_said():
    names, notes = rewritten(Model(lambda logits, tokens: (shifted(logits, tokens), logits)))
    assert "legroom.linear_cross_entropy_backward.default" in names
    (note,) = [each.why for each in notes if each.what == "a rewrite"]
    assert "kept once" in note


def test_logits_with_another_use_are_kept_and_that_is_said():
    def with_penalty(logits, tokens):
        return shifted(logits, tokens) + logits.logsumexp(-1).square().mean()

    names, notes = rewritten(Model(with_penalty))
    assert "aten._log_softmax.default" in names
    (note,) = [each.why for each in notes if each.what == "a rewrite"]
    assert "other uses" in note


@pytest.mark.parametrize(
    "loss",
    [
        lambda logits, tokens: F.cross_entropy(logits.transpose(1, 2), tokens),
        lambda logits, tokens: F.cross_entropy(2 * logits.flatten(0, 1), tokens.flatten()),
        lambda logits, tokens: F.cross_entropy(logits[..., :99].flatten(0, 1), tokens.flatten()),
        lambda logits, tokens: F.mse_loss(logits.view(-1, CLASSES), torch.zeros(160, CLASSES)),
    ],
    ids=["classes in the middle", "scaled", "some classes", "another loss"],
)  # fmt: skip
def test_what_is_something_else_stays(loss):
    names, notes = rewritten(Model(loss))
    assert not [each for each in names if "linear_cross_entropy" in each]
    assert not [each for each in notes if each.what == "a rewrite"]


def test_few_logits_stay():
    model = nn.Sequential(nn.Linear(4, 10))
    data, target = torch.randn(8, 4), torch.zeros(8, dtype=torch.int64)

    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, value):
            return F.cross_entropy(self.model(value), target)

    small = Small()
    captured = capture_step(lambda: small(data).backward(), rewrites=(LossWithoutLogits.apply,))
    assert "aten._log_softmax.default" in [each.name for each in captured.planned.operations]


def test_at_bitwise_nothing_is_rewritten():
    names, _ = operations(Model(shifted), rewrites=PlanOptions(budget="50%").rewrites)
    assert "aten._log_softmax.default" in names


def test_a_step_as_written_turns_to_it_where_there_is_less(monkeypatch):
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(32, 32), nn.Linear(32, 2048)

        def forward(self, x, y):
            return nn.functional.cross_entropy(self.head(self.body(x).relu()), y)

    def as_written(judge, found, budget):
        return next(each for each in found if each.options.is_as_written)

    monkeypatch.setattr(Judge, "is_unbeatable", lambda *rest: False)
    monkeypatch.setattr(Judge, "best", as_written)
    torch.manual_seed(0)
    model = Classifier()
    fitted = legroom.fit(model, budget="100%", exactness="rounding")
    x, y = torch.randn(1024, 32), torch.randint(2048, (1024,))
    model(x, y).backward()
    before = fitted.report()
    fitted.reserve(before.plain_peak_bytes // 2)
    for _ in range(3):
        model(x, y).backward()
    after = fitted.report()
    fitted.undo()
    assert before.rewrites == ()
    assert "loss-without-logits" in after.rewrites
    assert after.measured_peak_bytes <= before.plain_peak_bytes // 2
