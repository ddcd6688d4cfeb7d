import torch
import torch.nn.functional as F
from torch import nn

ROWS, CLASSES = 64, 500
SCORES = ROWS * CLASSES * 4


def test_logits_count_log_softmax_and_gradients(find_in, train, is_here):
    model, x, y = nn.Linear(16, CLASSES), torch.randn(ROWS, 16), torch.randint(CLASSES, (ROWS,))

    def loss():
        return F.cross_entropy(model(x), y)  # here

    finding = find_in(train(model, loss))["logits"]
    assert finding.bytes == 3 * SCORES
    assert len(finding.tensors) == 3
    assert "1 × log-softmax, 2 × gradient" in finding.detail
    assert is_here(finding)


def test_scores_that_are_held_count_too(find_in, train):
    model, x, y = nn.Linear(16, CLASSES), torch.randn(ROWS, 16), torch.randint(CLASSES, (ROWS,))
    held = []

    def loss():
        held[:] = [model(x)]
        return F.cross_entropy(held[0], y)

    assert find_in(train(model, loss))["logits"].bytes == 4 * SCORES


def test_float_copies_of_bfloat16_scores_count(find_in, train):
    model = nn.Linear(16, CLASSES).bfloat16()
    x, y = torch.randn(ROWS, 16).bfloat16(), torch.randint(CLASSES, (ROWS,))
    held = []

    def loss():
        scores = model(x)
        held[:] = [scores, scores.float()]
        return F.cross_entropy(held[1], y)

    finding = find_in(train(model, loss))["logits"]
    assert finding.bytes == 4 * SCORES + SCORES // 2
    assert "1 × float32 copy of the scores" in finding.detail
    assert "1 × scores in bfloat16" in finding.detail


def test_scores_shifted_by_a_position_count(find_in, train):
    model = nn.Linear(16, CLASSES)
    x, y = torch.randn(4, 16, 16), torch.randint(CLASSES, (4, 16))
    held = []

    def loss():
        held[:] = [model(x)]
        shifted = held[0][:, :-1].reshape(-1, CLASSES)
        return F.cross_entropy(shifted, y[:, 1:].reshape(-1))

    shifted_bytes = 4 * 15 * CLASSES * 4
    finding = find_in(train(model, loss))["logits"]
    assert finding.bytes == SCORES + 3 * shifted_bytes


def test_scores_of_every_voxel_count(find_in, train):
    model, x = nn.Conv3d(1, 5, 1), torch.randn(1, 1, 8, 8, 8)
    y = torch.randint(5, (1, 8, 8, 8))
    finding = find_in(train(model, lambda: F.cross_entropy(model(x), y)))["logits"]
    assert finding.bytes == 3 * 5 * 8**3 * 4


def test_chunked_loss_keeps_few_logits(find_in, train):
    model, x = nn.Linear(16, CLASSES, bias=False), torch.randn(ROWS, 16)
    y = torch.randint(CLASSES, (ROWS,))
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=4)

    def loss():
        return F.linear_cross_entropy(x, model.weight, y, options=options)

    assert "logits" not in find_in(train(model, loss))


def test_few_classes_are_not_worth_a_finding(find_in, train):
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 4))
    x, y = torch.randn(32, 64), torch.randint(4, (32,))
    assert "logits" not in find_in(train(model, lambda: F.cross_entropy(model(x), y)))
