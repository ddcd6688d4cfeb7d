import torch
from torch import nn

ROWS, WIDTH, LOOKED_UP = 2000, 16, 50


class Net(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH, **options)
        self.bag = nn.EmbeddingBag(ROWS, WIDTH, mode="sum", **options)

    def forward(self, indices):
        single = self.table(indices)
        return single + self.bag(indices.unsqueeze(-1))  # here


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, indices):
        return self.norm(self.table(indices)) @ self.table.weight.T


def test_rows_never_looked_up_are_waste(find_in, train, is_here):
    model, indices = Net(), torch.randint(ROWS, (LOOKED_UP,))
    optimizer = torch.optim.AdamW(model.parameters())
    findings = find_in(train(model, lambda: model(indices).square().mean(), optimizer))
    finding = findings["dense-embedding-gradient"]
    assert finding.bytes == 2 * (ROWS - LOOKED_UP) * WIDTH * 4
    assert len(finding.tensors) == 2
    assert "the optimizer keeps another 500.0 KiB" in finding.detail
    assert is_here(finding)


def test_sparse_gradients_are_no_finding(find_in, train):
    model, indices = Net(sparse=True), torch.randint(ROWS, (LOOKED_UP,))
    optimizer = torch.optim.SparseAdam(model.parameters())
    findings = find_in(train(model, lambda: model(indices).square().mean(), optimizer))
    assert "dense-embedding-gradient" not in findings


def test_tied_output_projection_needs_a_dense_gradient(find_in, train):
    model, indices = Tied(), torch.randint(ROWS, (LOOKED_UP,))
    findings = find_in(train(model, lambda: model(indices).square().mean()))
    assert "dense-embedding-gradient" not in findings


def test_table_in_full_use_is_no_finding(find_in, train):
    model, indices = Net(), torch.arange(ROWS)
    findings = find_in(train(model, lambda: model(indices).square().mean()))
    assert "dense-embedding-gradient" not in findings
