"""What people do around a training step, on fitted models: every bit as in plain PyTorch.

Each test trains a tiny model plain and fitted from the same state and compares the losses, every
gradient, parameter and buffer, and the random state by their bytes. The failure modes come from
other tools' threads.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from tests.unit.engine.training import Net, backward_of_batch, batch, check_same, images


class EveryRandomOperation(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 32)
        self.third = nn.Linear(32, 32)
        self.head = nn.Linear(32, 8)
        self.alpha = nn.AlphaDropout(0.1)
        self.rrelu = nn.RReLU()

    def forward(self, value, target):
        value = F.dropout(torch.tanh(self.first(value)), 0.2)
        value = self.alpha(F.selu(self.second(value)))
        value = self.rrelu(value) * torch.bernoulli(torch.full_like(value, 0.9))
        value = value + 0.1 * torch.rand_like(value) + 0.1 * torch.randn_like(value)
        value = F.dropout2d(value.view(-1, 8, 2, 2), 0.2).flatten(1)
        value = value * F.gumbel_softmax(self.third(value), tau=2.0)
        keep = (torch.rand(len(value), 1) < 0.8).float() / 0.8
        return F.cross_entropy(self.head(value + keep * torch.sigmoid(value)), target)


class Images(nn.Module):
    """Convolutions with every norm that keeps statistics, and some that do not."""

    def __init__(self):
        super().__init__()
        self.stem = parametrizations.spectral_norm(nn.Conv2d(4, 8, 3, padding=1))
        self.batch_norm = nn.BatchNorm2d(8)
        self.middle = parametrizations.weight_norm(nn.Conv2d(8, 8, 3, padding=1))
        self.instance_norm = nn.InstanceNorm2d(8, affine=True, track_running_stats=True)
        self.last = nn.Conv2d(8, 8, 3, padding=1)
        self.group_norm = nn.GroupNorm(2, 8)
        self.narrow = nn.BatchNorm1d(8)
        self.register_buffer("average", torch.zeros(8))

    def forward(self, value):
        value = F.relu(self.batch_norm(self.stem(value)))
        value = F.relu(self.instance_norm(self.middle(value)))
        value = F.relu(self.group_norm(self.last(value))).mean((2, 3))
        self.average.mul_(0.9).add_(value.detach().mean(0), alpha=0.1)
        return self.narrow(value - self.average).square().mean() + value.sigmoid().mean()


class InPlace(nn.Module):
    """Writes into activations, slices, views and arguments of its own."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 32)
        self.head = nn.Linear(32, 8)

    def forward(self, value, target):
        value = F.relu_(self.first(value))
        value = value.mul(0.5).add_(1.0)
        halves = value.clone()
        halves[:, :16] = torch.tanh(value[:, 16:])
        halves[::2].add_(0.25)
        turned = self.second(halves).t()
        turned.mul_(turned.sigmoid())
        buffer = torch.zeros_like(halves)
        buffer.copy_(turned.t()).clamp_(-2, 2)
        buffer.view(-1, 4, 8)[:, 1].mul_(2.0)
        return F.cross_entropy(self.head(F.leaky_relu_(buffer)), target)


def test_every_random_operation_draws_the_same():
    check_same(EveryRandomOperation(), backward_of_batch, num_steps=5)


def test_statistics_and_buffers_are_written_once():
    def gradients(model, step):
        loss = model(images(step))
        loss.backward()
        return loss

    check_same(Images(), gradients, activations="85%")


def test_writing_in_place_stays_right():
    check_same(InPlace(), backward_of_batch, activations="80%")


class Tied(nn.Module):
    """One matrix as embedding and as head, used in two regions, and padding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 16, padding_idx=0)
        self.net = Net()
        self.net.head.weight = self.embedding.weight

    def forward(self, tokens, target):
        return self.net(self.embedding(tokens), target)


class Adapted(nn.Module):
    """A frozen net with low-rank adapters; one of its parameters never gets a gradient."""

    def __init__(self):
        super().__init__()
        self.net = Net().requires_grad_(False)
        self.lower = nn.ParameterList(nn.Parameter(torch.randn(16, 2)) for _ in self.net.blocks)
        self.raise_ = nn.ParameterList(nn.Parameter(torch.zeros(2, 16)) for _ in self.net.blocks)
        self.unused = nn.Linear(16, 16)

    def forward(self, value, target):
        pairs = zip(self.lower, self.raise_, strict=True)
        for block, (lower, raise_) in zip(self.net.blocks, pairs, strict=True):
            value = block(value) + value @ lower @ raise_
        return F.cross_entropy(self.net.head(value), target)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        ctx.save_for_backward(value)
        return value**3

    @staticmethod
    def backward(ctx, gradient):
        (value,) = ctx.saved_tensors
        return 3 * value.square() * gradient * 1.5  # not the true one: it must be this that runs


class WithCustomFunction(Net):
    def forward(self, value, target):
        value = torch.tanh(self.features(value))
        return F.cross_entropy(self.head(Cube.apply(torch.sigmoid(value))), target)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.net = Net()
        self.rnn = kind(16, 16, batch_first=True)

    def forward(self, sequence, target):
        value, _ = self.rnn(self.net.features(sequence))
        return F.cross_entropy(self.net.head(value.mean(1)), target)


class Packed(nn.Module):
    """Sequences of several lengths, with something to remake behind."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.net = Net()

    def forward(self, sequence, lengths, target):
        packed = pack_padded_sequence(sequence, lengths, batch_first=True, enforce_sorted=False)
        value, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return F.cross_entropy(self.net.head(self.net.features(value)).mean(1), target)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 8)

    def forward(self, value, target):
        value = self.encoder(value)
        value = value + self.attention(value, value, value)[0]
        return F.cross_entropy(self.head(value).mean(1), target)


class Checkpointed(Net):
    def __init__(self, use_reentrant):
        super().__init__()
        self.use_reentrant = use_reentrant

    def features(self, value):
        value = self.blocks[0](value)
        value = checkpoint(self.blocks[1], value, use_reentrant=self.use_reentrant)
        return self.blocks[2](value)


def sequences(step, length=12, width=16, rows=24):
    _, target = batch(step, rows=rows)
    return torch.randn(rows, length, width, generator=torch.Generator().manual_seed(step)), target


def test_tied_weights_stay_one():
    def gradients(model, step):
        tokens, target = batch(step)
        loss = model(tokens[:, 0].gt(0).long() * (1 + target % 7), target)
        loss.backward()
        return loss

    model = Tied()
    check_same(model, gradients)
    assert model.net.head.weight is model.embedding.weight


def test_embeddings_are_renormed_once():
    class Renormed(Net):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(8, 16, max_norm=1.0)

        def forward(self, value, target):
            return super().forward(value + self.table(target), target)

    check_same(Renormed(), backward_of_batch)


def test_frozen_parts_and_adapters():
    model = Adapted()
    check_same(model, backward_of_batch, activations="80%")
    assert model.unused.weight.grad is None
    assert all(param.grad is None for param in model.net.parameters())


def test_custom_functions_keep_their_gradients():
    check_same(WithCustomFunction(), backward_of_batch)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_models(kind):
    def gradients(model, step):
        loss = model(*sequences(step, length=6, rows=64))
        loss.backward()
        return loss

    check_same(Recurrent(kind), gradients, activations="80%")


def test_packed_sequences():
    lengths = torch.tensor([12, 5, 7, 12] * 6)

    def gradients(model, step):
        sequence, target = sequences(step)
        loss = model(sequence, lengths, target)
        loss.backward()
        return loss

    check_same(Packed(), gradients, activations="80%")


def test_attention_and_encoders():
    def gradients(model, step):
        loss = model(*sequences(step))
        loss.backward()
        return loss

    check_same(Attention(), gradients)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_blocks_under_checkpoint(use_reentrant):
    check_same(Checkpointed(use_reentrant), backward_of_batch, activations="80%")


def test_autocast_keeps_its_types():
    def gradients(model, step):
        tokens, target = batch(step)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(tokens[:, 0].gt(0).long() * (1 + target % 7), target)
        (1024 * loss).backward()
        for param in model.parameters():
            param.grad.div_(1024)
        return loss

    check_same(Tied(), gradients)


def test_hooks_inside_a_model_run():
    seen = []

    class Hooked(Net):
        def forward(self, value, target):
            value = self.features(value)
            value.register_hook(lambda gradient: gradient * 1.25)
            return F.cross_entropy(self.head(value), target)

    model = Hooked()
    model.blocks[1].register_forward_hook(lambda module, args, output: output * 1.125)
    model.blocks[0].up.register_forward_pre_hook(lambda module, args: (args[0] + 0.5,))
    model.register_forward_hook(lambda module, args, output: seen.append("forward"))
    check_same(model, backward_of_batch)
    assert len(seen) >= 6


def test_backward_hooks_of_modules_run():
    model = Net()
    seen = []

    def hook(module, gradients_in, gradients_out):
        seen.append(float(gradients_out[0].sum()))
        return (gradients_in[0] * 1.5,)

    model.blocks[1].register_full_backward_hook(hook)
    check_same(model, backward_of_batch, activations="80%")
    assert seen[:3] == seen[-3:]  # plain, then on made-up tensors, then fitted
