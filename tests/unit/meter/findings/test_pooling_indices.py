import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.pool = pool

    def forward(self, x):
        x = self.pool(self.first(x))
        return self.pool(self.second(x))


def pool_plainly(x):
    return F.max_pool2d(x, 2)  # here


def pool_adaptively(x):
    return F.adaptive_max_pool2d(x, x.shape[-1] // 2)  # here


def pool_again_in_backward(x):
    return checkpoint(F.max_pool2d, x, 2, use_reentrant=False)


@pytest.mark.parametrize("pool", [pool_plainly, pool_adaptively])
def test_positions_take_eight_bytes_each(find_in, train, is_here, pool):
    model, x = Net(pool), torch.randn(2, 3, 16, 16)
    finding = find_in(train(model, lambda: model(x).square().mean()))["pooling-indices"]
    assert finding.bytes == 2 * 8 * (8 * 8 + 4 * 4) * 8
    assert len(finding.tensors) == 2
    assert is_here(finding)


@pytest.mark.parametrize("pool", [pool_again_in_backward, lambda x: F.avg_pool2d(x, 2)])
def test_checkpointed_or_average_pooling_keeps_none(find_in, train, pool):
    model, x = Net(pool), torch.randn(2, 3, 16, 16)
    assert "pooling-indices" not in find_in(train(model, lambda: model(x).square().mean()))
