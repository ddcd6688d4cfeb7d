import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from legroom.capture import signature_of
from legroom.meter._costs import cost_of

aten = torch.ops.aten
X = torch.empty(8, 4)  # 128 bytes


def cost(func, *args, **kwargs):
    return cost_of(signature_of(func, args, kwargs))


def test_a_product_counts_two_per_multiplication():
    found = cost(aten.mm.default, X, torch.empty(4, 2))
    assert found.flops == 2 * 8 * 4 * 2
    assert found.moved_bytes == found.held_bytes == 4 * (32 + 8 + 16)
    assert found.is_matrix_product
    assert not found.is_elementwise


def test_elementwise_reads_once_and_writes_once():
    found = cost(aten.add.Tensor, X.bfloat16(), X.bfloat16())
    assert (found.flops, found.moved_bytes, found.dtype) == (0, 3 * 64, "bfloat16")
    assert found.is_elementwise


def test_repeated_elements_are_read_once():
    row = torch.empty(4).expand(8, 4)
    assert cost(aten.add.Tensor, X, row).moved_bytes == 128 + 16 + 128


def test_in_place_writes_what_it_reads():
    assert cost(aten.mul_.Tensor, X, 2.0).moved_bytes == 2 * 128


def test_a_lookup_reads_the_rows_it_takes():
    table, index = torch.empty(1000, 4), torch.zeros(3, dtype=torch.long)
    found = cost(aten.embedding.default, table, index)
    assert found.moved_bytes == 2 * 48 + 24
    assert found.held_bytes == 16000 + 48 + 24


@pytest.mark.parametrize("func", [aten.t.default, aten.detach.default])
def test_views_move_nothing(func):
    assert cost(func, X).moved_bytes == 0


def test_attention_on_the_cpu_has_a_formula():
    q = torch.empty(2, 4, 16, 8)
    forward = cost(aten._scaled_dot_product_flash_attention_for_cpu.default, q, q, q)
    assert forward.flops == 2 * (2 * 2 * 4 * 16 * 16 * 8)
    backward = cost(
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        *(q, q, q, q, q, torch.empty(2, 4, 16), 0.0, False),
    )
    assert backward.flops > 2 * forward.flops


def test_recurrent_layers_use_each_weight_per_position():
    steps, batch, hidden = 5, 3, 4
    x, state = torch.empty(steps, batch, hidden), torch.empty(1, batch, hidden)
    weight, bias = torch.empty(4 * hidden, hidden), torch.empty(4 * hidden)
    found = cost(
        aten.mkldnn_rnn_layer.default,
        *(x, weight, weight, bias, bias, state, state),
        *(False, [], 2, hidden, 1, True, False, False, True),
    )
    assert found.flops == 2 * steps * batch * 2 * weight.numel()


def test_an_output_that_depends_on_values_is_left_out():
    assert cost(aten.nonzero.default, X).moved_bytes == 128


def test_an_unknown_operation_costs_nothing():
    assert cost_of('["aten.no_such_operation.default",[],{}]').moved_bytes == 0
    assert cost_of("nonsense").name == "nonsense"


def test_a_fake_mode_around_does_not_matter():
    with FakeTensorMode():
        assert cost(aten.mm.default, X, torch.empty(4, 6)).flops == 2 * 8 * 4 * 6


def test_what_has_no_fake_implementation_says_so_to_nobody(caplog):
    left, right = torch.zeros(8, 16), torch.zeros(2, 16, 4)
    ends = torch.tensor([4, 8], dtype=torch.int32)
    cost = cost_of(signature_of(torch.ops.aten._grouped_mm.default, (left, right, ends), {}))
    assert cost.largest_output_bytes == 8 * 4 * 4
    assert cost_of(signature_of(torch.ops.aten.nonzero.default, (left,), {})).name == "nonzero"
    assert not caplog.records
