import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.p = p

    def forward(self, x):
        for layer in self.layers:
            x = F.dropout(layer(x), self.p)  # here
        return x


def test_float_masks_waste_31_of_32_bits(find_in, train, is_here):
    model, x = Net(0.1), torch.randn(64, 32)
    finding = find_in(train(model, lambda: model(x).square().mean()))["dropout-mask"]
    elements = 64 * 32
    assert finding.bytes == 3 * (4 * elements - elements // 8)
    assert len(finding.tensors) == 3
    assert is_here(finding)
    assert "3 masks: 24.0 KiB at 4 bytes per element" in finding.detail


def test_masks_inside_attention_are_found(find_in, train):
    model, x = nn.Linear(32, 32), torch.randn(2, 4, 16, 8)

    def loss():
        q = model(x.reshape(2, 16, 32)).view(2, 16, 4, 8).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.1).square().mean()

    finding = find_in(train(model, loss))["dropout-mask"]
    elements = 2 * 4 * 16 * 16
    assert finding.bytes == 4 * elements - elements // 8
    assert "1 of them inside attention" in finding.detail


def test_dropout_of_zero_keeps_no_mask(find_in, train):
    model, x = Net(0.0), torch.randn(64, 32)
    assert "dropout-mask" not in find_in(train(model, lambda: model(x).square().mean()))
