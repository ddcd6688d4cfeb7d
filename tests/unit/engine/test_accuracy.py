"""How far a lossy plan's gradients are off is measured before training, and a bound is kept."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import legroom
from legroom import ways
from legroom.engine import _accuracy
from legroom.engine._step_plan import StepPlan
from legroom.errors import GradientErrorBoundError, InfeasibleBudgetError, UsageError
from legroom.meter import _operation_times
from legroom.meter._costs import tensors_in
from tests.unit.engine.training import bytes_of, state_of


@pytest.fixture(autouse=True)
def _same_times_in_every_run(monkeypatch, tmp_path):
    """Which forms a plan uses depends on how long they take: here that is known beforehand."""
    packing = {"integer2": 1.4, "integer4": 1.2}  # takes longer than what is read

    def by_bytes(call):
        factor = next((each for name, each in packing.items() if name in call.name), 1.0)
        return 0.002 + factor * 1e-7 * sum(each.nbytes for each in tensors_in(list(call.sets[0])))

    monkeypatch.setattr(_operation_times, "time_round", by_bytes)
    monkeypatch.setenv("LEGROOM_CACHE_DIR", str(tmp_path))


class Model(nn.Module):
    """Random numbers, a buffer that forward changes, and a loss."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(5))
        self.norm = nn.BatchNorm1d(64)
        self.dropout = nn.Dropout(0.1)

    def forward(self, data):
        value = data
        for layer in self.layers:
            value = self.dropout(F.gelu(layer(value))) + value
        return F.mse_loss(self.norm(value), data.roll(1, 0))


def fitted(**options):
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    handle = legroom.fit(model, optimizer=optimizer, exactness="lossy", time_limit_s=2.0, **options)
    return model, optimizer, handle


def trained(num_steps=3, **options):
    model, optimizer, handle = fitted(**options)
    data = torch.randn(1024, 64)
    try:
        for _ in range(num_steps):
            optimizer.zero_grad()
            model(data).backward()
            optimizer.step()
        return handle.report()
    finally:
        handle.undo()


def test_the_error_is_measured_and_reported():
    report = trained(activations="60%", ways=["integer4"])
    assert "integer4" in report.ways
    assert 0.01 < report.gradient_error < 0.5
    assert report.to_dict()["gradient_error"] == report.gradient_error


def test_the_error_is_measured_again_during_training(monkeypatch, caplog):
    checks = []
    run = _accuracy.AccuracyCheck.run
    monkeypatch.setattr(
        _accuracy.AccuracyCheck, "run", lambda self: checks.append(run(self)) or None
    )
    with caplog.at_level("INFO", logger="legroom"):
        report = trained(num_steps=5, activations="60%", ways=["integer4"], check_every=2)
    assert len(checks) == 3  # before the first call, and after the second and the fourth
    assert 0.01 < report.gradient_error < 0.5
    assert report.measured_peak_bytes <= report.budget_bytes
    assert "after 4 calls gradients are off by 0." in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"check_every": 0}, "a check every 0 calls is none"),
        ({"check_every": 5, "exactness": "bitwise"}, "is for exactness 'lossy', not 'bitwise'"),
    ],
)
def test_a_check_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        legroom.fit(Model(), budget="50%", **{"exactness": "lossy", **options})


def test_what_is_not_lossy_has_no_error():
    report = trained(num_steps=1, activations="60%", ways=["remake"])
    assert report.gradient_error is None


def test_a_bound_leaves_coarse_ways_out():
    fine = trained(activations="60%", ways=["integer2", "integer8"], max_gradient_error=0.05)
    assert fine.gradient_error <= 0.05
    assert "integer2" not in fine.ways
    assert fine.measured_peak_bytes <= fine.budget_bytes


def test_a_bound_that_no_plan_keeps_is_an_error_with_numbers():
    with pytest.raises(
        GradientErrorBoundError, match=r"within 1e-06 of exact.*off by 0\."
    ) as caught:
        trained(activations="60%", ways=["integer4", "bfloat16"], max_gradient_error=1e-6)
    assert 1e-4 < caught.value.nearest < 0.01
    assert caught.value.bound == 1e-6


def test_a_plan_without_loss_is_tried_before_giving_up(monkeypatch):
    # Of the sets in between the searches find none that fits, as they may at the floor.
    rungs = [("integer2", "integer8"), ("integer8",), ("remake",)]
    monkeypatch.setattr(_accuracy, "_rungs", lambda options: rungs)
    use = StepPlan.use

    def searched(step_plan, options):
        if options.ways == rungs[1]:
            raise InfeasibleBudgetError(budget_bytes=1, floor_bytes=2)
        use(step_plan, options)

    monkeypatch.setattr(StepPlan, "use", searched)
    report = trained(activations="60%", ways=rungs[0], max_gradient_error=1e-9)
    assert report.gradient_error is None
    assert report.ways.keys() == {"hold", "remake"}


def test_measuring_changes_nothing(monkeypatch):
    model, _, handle = fitted(activations="60%", ways=["integer4"])
    seen = []
    run = _accuracy.AccuracyCheck.run

    def watched(check):
        for param in model.parameters():
            param.grad = torch.ones_like(param)
        before = state_of(model), [bytes_of(each.grad) for each in model.parameters()]
        run(check)
        seen.append(
            (state_of(model), [bytes_of(each.grad) for each in model.parameters()]) == before
        )

    monkeypatch.setattr(_accuracy.AccuracyCheck, "run", watched)
    model(torch.randn(1024, 64))
    handle.undo()
    assert seen == [True]


@pytest.mark.parametrize("bound", [None, 0.1])
def test_where_an_exact_step_does_not_fit_a_bound_is_an_error(monkeypatch, caplog, bound):
    def too_large(check):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(_accuracy.AccuracyCheck, "_exact_gradients", too_large)
    options = {"activations": "60%", "ways": ["integer8"], "max_gradient_error": bound}
    if bound is not None:
        with pytest.raises(RuntimeError, match="can't allocate"):
            trained(num_steps=1, **options)
        return
    assert trained(num_steps=1, **options).gradient_error is None
    assert "an exact step does not fit" in caplog.text


def test_a_plan_that_becomes_lossy_later_is_checked_too():
    model, _, handle = fitted(activations="90%", ways=["integer8"])
    data = torch.randn(1024, 64)
    model(data).backward()
    handle.reserve(1_200_000)
    model(data).backward()
    report = handle.report()
    handle.undo()
    assert "integer8" in report.ways
    assert report.gradient_error is not None


class Uneven(nn.Module):
    """The gradients are almost all of the last layers: what the first ones keep matters little."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))

    def forward(self, data):
        value = data
        for number, layer in enumerate(self.layers):
            value = torch.tanh(layer(value)) * (0.05 if number == 4 else 1.0)
        return F.mse_loss(value, data.roll(1, 0))


def uneven_error(ways=("integer2", "integer4", "integer8"), **options):
    torch.manual_seed(0)
    model = Uneven()
    handle = legroom.fit(
        model, activations="80%", exactness="lossy", preset="actnn", ways=ways, **options
    )
    model(torch.randn(1024, 64)).backward()
    report = handle.report()
    handle.undo()
    return report


def test_bits_go_where_gradients_depend_on_them(monkeypatch):
    stages = []
    better = uneven_error(on_progress=lambda *stage: stages.append(stage))
    assert [each for each in stages if each[0] == "measuring what gradients depend on"]
    monkeypatch.setattr(_accuracy.AccuracyCheck, "_allocate_bits", lambda self, error: error)
    uniform = uneven_error()
    assert len(set(uniform.ways) - {"hold"}) < len(set(better.ways) - {"hold"})
    assert better.gradient_error < 0.9 * uniform.gradient_error
    assert better.predicted_peak_bytes <= better.budget_bytes


def test_bits_that_help_nothing_are_taken_back(monkeypatch):
    errors = iter([0.1, 0.2])
    monkeypatch.setattr(
        _accuracy.AccuracyCheck,
        "_measure",
        lambda self: next(errors),
    )
    assert uneven_error().gradient_error == 0.1


def test_where_finer_forms_do_not_fit_bits_stay_the_same(monkeypatch, caplog):
    def too_large(*args, **kwargs):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(_accuracy, "measure_sensitivity", too_large)
    assert uneven_error().gradient_error > 0
    assert "bits are the same for all tensors" in caplog.text


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_bound_is_refused(bound):
    with pytest.raises(UsageError, match="is no bound"):
        legroom.fit(Model(), budget="50%", exactness="lossy", max_gradient_error=bound)


def test_a_bound_without_anything_lossy_is_refused():
    with pytest.raises(UsageError, match="is for exactness 'lossy', not 'bitwise'"):
        legroom.fit(Model(), budget="50%", max_gradient_error=0.1)


@pytest.mark.parametrize("name", [name for name in ways.names() if "fewbit" not in name])
def test_each_way_says_how_far_off_it_is(name):
    """Few bits are of a derivative, and tested with their encodings."""
    way = ways.get(name)
    if way.exactness is not ways.Exactness.LOSSY:
        assert way.error == 0
        return
    value = torch.randn(2**18, generator=torch.Generator().manual_seed(0))
    found = way.get(way.put(value), list(value.shape), list(value.stride()), value.dtype)
    assert ((found - value).norm() / value.norm()).item() == pytest.approx(way.error, rel=0.03)
