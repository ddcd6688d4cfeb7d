"""Of an LSTM's workspace only what backward reads is held."""

import pytest
import torch
from torch import nn

from legroom import ways
from legroom.capture import Kind, OperationInfo, Phase, TensorInfo, arguments_of, signature_of
from legroom.capture._rnn import lstm_workspace_bytes
from tests.unit.engine.training import check_same

SHAPE = (5, 4, 24, 16)


def surroundings(shape, *, is_reverse=False, place=3):
    """A workspace as a captured graph describes it, and the layer that makes it."""
    num_steps, batch, input_size, hidden_size = shape
    like = {"device": "meta"}
    weights = [torch.empty(4 * hidden_size, width, **like) for width in (input_size, hidden_size)]
    state = torch.empty(batch, hidden_size, **like)
    args = (
        torch.empty(num_steps, batch, input_size, **like), weights, state, state, is_reverse, True,
    )  # fmt: skip
    num_bytes = lstm_workspace_bytes(*shape)
    tensor = TensorInfo(
        9,
        "workspace",
        num_bytes=num_bytes,
        kind=Kind.STASH,
        shape=(num_bytes,),
        dtype="uint8",
        producer=0,
    )
    writes = [1, 2, 3, 4]
    writes[place] = 9
    signature = signature_of(torch.ops.legroom.lstm_layer.default, args)
    layer = OperationInfo(
        0, "legroom.lstm_layer.default", Phase.FORWARD, writes=tuple(writes), signature=signature
    )
    return tensor, layer


@pytest.mark.parametrize("is_reverse", [False, True])
def test_a_part_is_held_and_comes_back(is_reverse):
    tensor, layer = surroundings(SHAPE, is_reverse=is_reverse)
    saving = ways.Workspace.estimate(tensor, layer)
    assert saving.readers_only
    value = torch.randint(256, (tensor.num_bytes,)).to(torch.uint8)
    held = ways.Workspace.put(value, *saving.about)
    assert held.nbytes == saving.held_bytes < tensor.num_bytes
    back = ways.Workspace.get(held, [tensor.num_bytes], [1], torch.uint8, *saving.about)
    for first, count in zip(*saving.about, strict=True):
        assert torch.equal(back[first : first + count], value[first : first + count])


def test_two_thirds_of_a_wide_layer_go():
    tensor, layer = surroundings((50, 32, 512, 256))
    assert ways.Workspace.estimate(tensor, layer).held_bytes < tensor.num_bytes / 4


def test_what_it_runs_can_be_timed():
    tensor, layer = surroundings(SHAPE)
    put, get = ways.Workspace.signatures(tensor, layer)
    for signature in (put, get):
        operation, args, kwargs = arguments_of(signature)
        operation(*args, **kwargs)


def test_it_is_for_the_workspace_alone():
    tensor, layer = surroundings(SHAPE, place=0)
    assert ways.Workspace.estimate(tensor, layer) is None
    tensor, _ = surroundings(SHAPE)
    other = OperationInfo(0, "aten.cat.default", Phase.FORWARD, writes=(1, 2, 3, 9))
    assert ways.Workspace.estimate(tensor, other) is None


class Recurrent(nn.Module):
    """Layers in both directions, and a loss."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 24, num_layers=2, bidirectional=True)
        self.head = nn.Linear(48, 8)

    def forward(self, value):
        return self.head(self.lstm(value)[0]).square().mean()


def test_training_with_it_has_the_same_bits():
    torch.manual_seed(0)
    value = torch.randn(30, 16, 16)

    def backward(model, step):
        loss = model(value + step)
        loss.backward()
        return loss

    handle = check_same(
        Recurrent(), backward, budget="100%", stash="70%", ways=["workspace"], is_remade=False
    )
    assert handle.report().ways["workspace"]
