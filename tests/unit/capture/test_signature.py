import json

import pytest
import torch

from legroom.capture import arguments_of, signature_of
from legroom.errors import UsageError

aten = torch.ops.aten


def round_trip(func, *args, **kwargs):
    signature = signature_of(func, args, kwargs)
    operation, made, named = arguments_of(signature, "cpu")
    assert operation is func
    assert signature_of(operation, tuple(made), named) == signature
    return made, operation(*made, **named)


def test_a_call_is_read_back():
    bias, left, right = torch.randn(3), torch.randn(4, 2), torch.randn(3, 2).t()
    signature = signature_of(aten.addmm.default, (bias, left, right), {"beta": 2})
    assert json.loads(signature) == [
        "aten.addmm.default",
        [
            {"t": [[3], [1], "float32"]},
            {"t": [[4, 2], [2, 1], "float32"]},
            {"t": [[2, 3], [1, 2], "float32"]},
        ],
        {"beta": 2},
    ]
    _, out = round_trip(aten.addmm.default, bias, left, right, beta=2)
    assert out.shape == (4, 3)


def test_constants_and_infinity_are_read_back():
    _, out = round_trip(
        aten.full.default, [2, 3], float("-inf"), dtype=torch.float64, device=torch.device("cpu")
    )
    assert out.dtype is torch.float64
    assert bool((out == float("-inf")).all())


def test_expanded_tensors_stay_expanded():
    made, _ = round_trip(aten.mul.Tensor, torch.randn(1, 3).expand(5, 3), torch.randn(5, 1))
    assert made[0].stride() == (0, 1)


def test_random_numbers_of_the_program_stay():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    round_trip(aten.mul.Tensor, torch.ones(2), torch.ones(2))
    assert torch.equal(torch.get_rng_state(), before)


def test_indices_are_in_range():
    numbers = torch.zeros(4, 6, dtype=torch.long)
    made, _ = round_trip(aten.embedding.default, torch.randn(50, 3), numbers)
    assert made[1].max() > 0
    round_trip(aten.embedding_dense_backward.default, torch.randn(4, 6, 3), numbers, 50, -1, False)
    round_trip(aten.gather.default, torch.randn(4, 9), 1, numbers)
    round_trip(aten.index.Tensor, torch.randn(7, 8), [None, numbers])
    round_trip(aten.gather.default, torch.randn(4, 9), 1, numbers[:, :1].expand(4, 6))


def test_targets_are_classes():
    scores, target = torch.randn(6, 5), torch.zeros(6, dtype=torch.long)
    made, (_, total) = round_trip(aten.nll_loss_forward.default, scores, target, None, 1, -100)
    assert made[1].max() > 0
    args = torch.tensor(1.0), scores, target, None, 1, -100, total
    round_trip(aten.nll_loss_backward.default, *args)


def test_alignments_have_lengths():
    scores, targets = torch.randn(9, 2, 5).log_softmax(2), torch.zeros(2, 3, dtype=torch.long)
    lengths = torch.zeros(2, dtype=torch.long)
    made, _ = round_trip(aten._ctc_loss.Tensor, scores, targets, lengths, lengths, 0, True)
    assert made[2].tolist() == [9, 9]
    assert made[3].tolist() == [3, 3]


def test_bags_are_of_equal_size():
    weight, indices = torch.randn(10, 4), torch.zeros(6, dtype=torch.long)
    offsets = torch.zeros(3, dtype=torch.long)
    made, _ = round_trip(aten._embedding_bag.default, weight, indices, offsets)
    assert made[2].tolist() == [0, 2, 4]


def test_unknown_operations_are_named():
    with pytest.raises(UsageError, match="is not the signature of an operation"):
        arguments_of('["aten.no_such_thing.default", [], {}]')
    with pytest.raises(UsageError, match="expected what"):
        arguments_of("nonsense")
