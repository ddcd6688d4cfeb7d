import torch
from torch import nn

ROWS, WIDTH = 64, 32
ELEMENTS = ROWS * WIDTH


class Wide(nn.Module):
    """Computes in float32 by hand, as many norms do."""

    def __init__(self, upcast):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.upcast = upcast

    def forward(self, x):
        hidden = self.first(x)
        wide = hidden.float() if self.upcast else hidden  # here
        return self.second(torch.sin(wide).to(x.dtype))


def test_half_of_an_upcast_copy_is_waste(find_in, train, is_here):
    model, x = Wide(upcast=True).bfloat16(), torch.randn(ROWS, WIDTH).bfloat16()
    finding = find_in(train(model, lambda: model(x).square().mean()))["upcast-copies"]
    assert finding.bytes == 2 * ELEMENTS
    assert finding.detail.startswith("1 float32 copy: 8.00 KiB")
    assert is_here(finding)


def test_all_of_it_is_waste_beside_the_original(find_in, train):
    model, x = Wide(upcast=True).bfloat16(), torch.randn(ROWS, WIDTH).bfloat16()

    def loss():
        hidden = model.first(x)
        return (torch.sin(hidden).mean() + torch.cos(hidden.float()).mean()).square()

    finding = find_in(train(model, loss))["upcast-copies"]
    assert finding.bytes == 4 * ELEMENTS


def test_same_precision_needs_no_copy(find_in, train):
    model, x = Wide(upcast=False).bfloat16(), torch.randn(ROWS, WIDTH).bfloat16()
    assert "upcast-copies" not in find_in(train(model, lambda: model(x).square().mean()))


def test_autocast_keeps_cast_weights_and_repeated_casts(find_in, train):
    norm = nn.LayerNorm(WIDTH)
    branches = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(3))
    x = torch.randn(ROWS, WIDTH)

    def loss():
        with torch.autocast("cpu", torch.bfloat16):
            hidden = norm(x)
            total = torch.stack([branch(hidden) for branch in branches]).float()
        return total.square().mean()

    finding = find_in(train(nn.ModuleList([norm, branches]), loss))["upcast-copies"]
    cast_weights = 3 * 3 * WIDTH * WIDTH * 2
    cast_again = 2 * ELEMENTS * 2
    wide_copy = 3 * ROWS * 3 * WIDTH * 4 // 2
    assert finding.bytes == cast_weights + cast_again + wide_copy
    assert "1 float32 copy, 3 cast weights, 2 activations cast again" in finding.detail


def test_bool_made_float_is_not_upcast(find_in, train):
    model, x = nn.Linear(WIDTH, WIDTH), torch.randn(ROWS, WIDTH)

    def loss():
        hidden = model(x)
        return (hidden * (hidden > 0).float()).square().mean()

    assert "upcast-copies" not in find_in(train(model, loss))
