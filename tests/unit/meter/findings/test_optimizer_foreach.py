import torch
from torch import nn


def net():
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))


PARAMETERS = 4 * (64 * 64 + 64) * 4


def test_foreach_holds_a_copy_of_all_parameters(find_in, is_here):
    model, x = net(), torch.randn(4, 64)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()  # here

    finding = find_in(step)["optimizer-foreach"]
    assert finding.bytes == PARAMETERS
    assert len(finding.tensors) == 8
    assert "100 % of the weights" in finding.detail
    assert is_here(finding)


def test_one_by_one_or_fused_is_no_finding(find_in, train):
    x = torch.randn(4, 64)
    for options in ({"foreach": False}, {"fused": True}):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        findings = find_in(train(model, lambda m=model: m(x).square().mean(), optimizer))
        assert "optimizer-foreach" not in findings
