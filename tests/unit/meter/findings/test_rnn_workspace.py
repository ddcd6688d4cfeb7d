import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
def test_workspace_of_every_layer_counts(find_in, train, is_here):
    model, x = nn.LSTM(16, 32, num_layers=2), torch.randn(20, 4, 16)

    def loss():
        return model(x)[0].square().mean()  # here

    finding = find_in(train(model, loss))["rnn-workspace"]
    assert len(finding.tensors) == 2
    # Four gates and a cell state per step at least; the layout is oneDNN's own.
    assert finding.bytes >= 2 * 5 * 20 * 4 * 32 * 4
    assert "2 buffers" in finding.detail
    assert is_here(finding)


def test_checkpointed_lstm_keeps_no_workspace(find_in, train):
    model, x = nn.LSTM(16, 32), torch.randn(20, 4, 16)

    def loss():
        return checkpoint(model, x, use_reentrant=False)[0].square().mean()

    assert "rnn-workspace" not in find_in(train(model, loss))


def test_gru_without_a_fused_kernel_is_quiet(find_in, train):
    model, x = nn.GRU(16, 32), torch.randn(20, 4, 16)
    assert "rnn-workspace" not in find_in(train(model, lambda: model(x)[0].square().mean()))
