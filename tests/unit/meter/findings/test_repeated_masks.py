import torch
import torch.nn.functional as F
from torch import nn

BATCH, HEADS, ROWS, WIDTH = 2, 2, 32, 8


class Attention(nn.Module):
    def __init__(self, attend):
        super().__init__()
        width = HEADS * WIDTH
        self.projections = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(4))
        self.attend = attend

    def forward(self, x, mask):
        for projection in self.projections:
            heads = projection(x).view(BATCH, ROWS, 3 * HEADS, WIDTH).transpose(1, 2)
            mixed = self.attend(*heads.chunk(3, dim=1), mask)
            x = x + mixed.transpose(1, 2).reshape(BATCH, ROWS, -1)
        return x


def attend_fused(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # here


def attend_by_hand(q, k, v, mask):
    blocked = ~mask  # here
    return (q @ k.transpose(-1, -2)).masked_fill(blocked, -1e9).softmax(-1) @ v


X = torch.randn(BATCH, ROWS, HEADS * WIDTH)
PADDING = torch.ones(BATCH, 1, ROWS, ROWS, dtype=torch.bool)
PADDING[..., -4:] = False


def test_bool_mask_becomes_floats_in_every_layer(find_in, train, is_here):
    model = Attention(attend_fused)
    finding = find_in(train(model, lambda: model(X, PADDING).square().mean()))["repeated-masks"]
    assert finding.bytes == 3 * BATCH * ROWS * ROWS * 4
    assert len(finding.tensors) == 3
    assert is_here(finding)


def test_masks_made_by_hand_in_every_layer(find_in, train, is_here):
    model = Attention(attend_by_hand)
    finding = find_in(train(model, lambda: model(X, PADDING).square().mean()))["repeated-masks"]
    assert finding.bytes == 3 * BATCH * ROWS * ROWS
    assert is_here(finding)


def test_one_float_mask_is_shared(find_in, train):
    model = Attention(attend_fused)

    def loss():
        shared = torch.zeros(PADDING.shape).masked_fill(~PADDING, float("-inf"))
        return model(X, shared).square().mean()

    assert "repeated-masks" not in find_in(train(model, loss))


def test_conditions_of_an_activation_are_not_masks(find_in, train):
    layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
    x = torch.randn(64, 32)

    def loss():
        hidden = x
        for layer in layers:
            hidden = layer(hidden)
            hidden = hidden.masked_fill(hidden < 0, 0.0)
        return hidden.square().mean()

    assert "repeated-masks" not in find_in(train(layers, loss))
