import pytest
import torch
import torch.nn.functional as F
from torch import nn

BATCH, HEADS, ROWS, WIDTH = 2, 4, 32, 8
PROBABILITIES = BATCH * HEADS * ROWS * ROWS * 4


def fused(q, k, v, p):
    return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)  # here


def by_hand(q, k, v, p):
    weights = torch.softmax(q @ k.transpose(-1, -2) / WIDTH**0.5, dim=-1)  # here
    return F.dropout(weights, p) @ v


class Attention(nn.Module):
    def __init__(self, attend, p, num_layers=2):
        super().__init__()
        width = HEADS * WIDTH
        self.projections = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(num_layers))
        self.attend, self.p = attend, p

    def forward(self, x):
        for projection in self.projections:
            heads = projection(x).view(BATCH, ROWS, 3 * HEADS, WIDTH).transpose(1, 2)
            mixed = self.attend(*heads.chunk(3, dim=1), self.p)
            x = x + mixed.transpose(1, 2).reshape(BATCH, ROWS, -1)
        return x


@pytest.mark.parametrize(
    ("attend", "p", "tensors_per_layer", "reason"),
    [
        (fused, 0.1, 3, "slow path because of dropout"),
        (by_hand, 0.1, 3, "matmul, softmax, matmul"),
        (by_hand, 0.0, 1, "matmul, softmax, matmul"),
    ],
)
def test_probabilities_of_every_layer_count(
    find_in, train, is_here, attend, p, tensors_per_layer, reason
):
    model, x = Attention(attend, p), torch.randn(BATCH, ROWS, HEADS * WIDTH)
    finding = find_in(train(model, lambda: model(x).square().mean()))["attention-math"]
    assert finding.bytes == 2 * tensors_per_layer * PROBABILITIES
    assert len(finding.tensors) == 2 * tensors_per_layer
    assert reason in finding.detail
    assert is_here(finding)


def test_fused_attention_is_no_finding(find_in, train):
    model, x = Attention(fused, 0.0), torch.randn(BATCH, ROWS, HEADS * WIDTH)
    assert "attention-math" not in find_in(train(model, lambda: model(x).square().mean()))


def test_softmax_of_a_router_is_not_attention(find_in, train):
    model, x = nn.Linear(16, 64), torch.randn(4, 16, 16)

    def loss():
        return model(x).softmax(-1)[..., 0].sum()

    assert "attention-math" not in find_in(train(model, loss))
