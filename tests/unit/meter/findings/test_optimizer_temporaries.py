import torch
from torch import nn


def test_update_of_the_largest_parameter_needs_copies(find_in, is_here):
    model, x = nn.Sequential(nn.Linear(16, 512), nn.Linear(512, 2)), torch.randn(4, 16)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()  # here

    finding = find_in(step)["optimizer-temporaries"]
    # Root and quotient of the first weight. The bias that follows has its root and quotient while
    # the weight's quotient is still referred to, but these are smaller.
    assert finding.bytes == 2 * 16 * 512 * 4
    assert is_here(finding)


def test_fused_optimizer_makes_no_temporaries(find_in, train):
    model, x = nn.Sequential(nn.Linear(16, 512), nn.Linear(512, 2)), torch.randn(4, 16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    findings = find_in(train(model, lambda: model(x).square().mean(), optimizer))
    assert "optimizer-temporaries" not in findings


def test_small_temporaries_below_the_peak_are_quiet(find_in, train):
    model, x = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)), torch.randn(4096, 16)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    findings = find_in(train(model, lambda: model(x).square().mean(), optimizer))
    assert "optimizer-temporaries" not in findings
