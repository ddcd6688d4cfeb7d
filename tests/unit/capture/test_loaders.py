"""Loaders, while a step is captured."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from legroom.capture import capture_step, capture_step_and
from legroom.capture._loaders import loaders_without_workers
from legroom.errors import CaptureFailedError


class Squares(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((8,), float(index)), torch.from_numpy(torch.ones(4).numpy())


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()  # as many streams do, without asking whether there is one
        for index in range(worker.id, 64, worker.num_workers):
            yield torch.full((8,), float(index)), torch.ones(4)


def train(batches_of):
    """Capture steps on the batches; what the batches were."""
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen = []

    def step():
        x, y = next(batches_of())
        seen.append(x)
        loss = (net(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    capture = capture_step(step)
    assert capture.planned.num_pieces == 1
    return seen


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"persistent_workers": True, "prefetch_factor": 3},
        {"multiprocessing_context": "spawn", "timeout": 30},
        {"shuffle": True, "worker_init_fn": torch.manual_seed},
    ],
    ids=["plain", "persistent", "spawn", "shuffle"],
)
def test_batches_of_workers_are_ordinary_data(options):
    loader = DataLoader(Squares(), batch_size=4, num_workers=2, **options)
    before = dict(vars(loader))
    seen = train(lambda: iter(loader))
    assert not any(isinstance(batch, FakeTensor) for batch in seen)
    if "shuffle" not in options:
        assert all(batch[:, 0].tolist() == [0, 1, 2, 3] for batch in seen)
    assert vars(loader) == before
    assert get_worker_info() is None


def test_a_stream_is_read_by_one_worker():
    loader = DataLoader(Stream(), batch_size=4, num_workers=2)
    batches = []

    def stream():
        if not batches:
            batches.append(iter(loader))  # while the step is captured
        return batches[0]

    seen = train(stream)
    assert [batch[0, 0].item() for batch in seen] == [4.0 * i for i in range(len(seen))]


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_run_already_go_on(persistent):
    loader = DataLoader(Squares(), batch_size=4, num_workers=1, persistent_workers=persistent)
    batches = iter(loader)
    first = next(batches)[0][:, 0].tolist()
    seen = train(lambda: batches)
    assert first == [0, 1, 2, 3]
    assert [batch[0, 0].item() for batch in seen] == [4.0 * (i + 1) for i in range(len(seen))]
    if persistent:
        assert all(batch[0, 0].item() == 0 for batch in train(lambda: iter(loader)))


def test_data_that_is_made_while_captured_can_be_loaded():
    made = []

    def batches():
        if not made:
            made.append(TensorDataset(torch.randn(16, 8), torch.randn(16, 4)))
        return iter(DataLoader(made[0], batch_size=4, num_workers=2))

    assert all(tuple(batch.shape) == (4, 8) for batch in train(batches))


class Lengths(Dataset):
    def __init__(self):
        self.drawn = []

    def __len__(self):
        return 32

    def __getitem__(self, index):
        self.drawn.append(index)
        return torch.ones(index + 1, 8)


def captured_on_lengths(sampler_of, **options):
    """Capture steps on sequences of different lengths; which were drawn, and the step's rows."""
    data, net, batches = Lengths(), nn.Linear(8, 4), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        if not batches:
            loader = DataLoader(data, 4, sampler=sampler_of(data), collate_fn=torch.cat, **options)
            batches.append(iter(loader))
        net(next(batches[0])).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    capture, drawn = capture_step_and(step, lambda: data.drawn)
    rows = max(each.shape[0] for each in capture.plain.tensors if each.shape[1:] == (4,))
    return drawn, rows


def test_a_shuffled_epoch_draws_each_sample_once():
    torch.manual_seed(0)
    drawn, rows = captured_on_lengths(RandomSampler)
    assert len(set(drawn)) == len(drawn) >= 16
    assert rows == sum(index + 1 for index in drawn[4:8])  # the second step is the plain one


def test_generators_of_samplers_are_put_back():
    generator = torch.Generator().manual_seed(5)
    before = generator.get_state()
    drawn, _ = captured_on_lengths(lambda data: RandomSampler(data, generator=generator))
    assert len(set(drawn)) >= 16  # it was drawn from
    assert torch.equal(generator.get_state(), before)


def test_a_sampler_of_made_up_numbers_is_answered():
    drawn, _ = captured_on_lengths(lambda data: WeightedRandomSampler(torch.rand(32) + 1, 32))
    assert len(drawn) >= 16


def test_a_sampler_that_fails_fails_as_itself():
    class Failing(RandomSampler):
        def __iter__(self):
            raise KeyError("no such sample")

    with pytest.raises(CaptureFailedError, match="no such sample"):
        captured_on_lengths(Failing)


def test_loaders_are_put_back():
    before = DataLoader.__iter__, torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    next_before = vars(before[1]).get("__next__")
    with loaders_without_workers():
        assert DataLoader.__iter__ is not before[0]
    assert DataLoader.__iter__ is before[0]
    assert vars(before[1]).get("__next__") is next_before
    (batch, _) = next(iter(DataLoader(Squares(), batch_size=4, num_workers=1)))
    assert batch.is_shared()
