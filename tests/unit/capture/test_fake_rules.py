"""Fake results against real ones, operation by operation."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.capture._fake_rules import ASSUMED, FAKE_RULES, fake_rules

aten = torch.ops.aten


class WithRules(TorchDispatchMode):
    """What a recording of a step does with the rules."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return FAKE_RULES.get(func, func)(*args, **(kwargs or {}))


def describe(results):
    leaves = torch.utils._pytree.tree_leaves(results)
    return [
        (each.shape, each.stride(), each.dtype, each.untyped_storage().nbytes())
        for each in leaves
        if isinstance(each, torch.Tensor)
    ]


def as_fake(mode, values):
    return torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, values)


def run_fake(op, args, kwargs=None):
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        return FAKE_RULES[op](*as_fake(mode, args), **(kwargs or {}))


def lstm_arguments():
    x, hx, cx = torch.randn(4, 3, 6), torch.randn(3, 5), torch.randn(3, 5)
    weights = torch.randn(20, 6), torch.randn(20, 5), torch.randn(20), torch.randn(20)
    return (x, *weights, hx, cx, False, [], 2, 5, 1, True, False, True, True)


def lstm_backward_arguments():
    args = lstm_arguments()
    output, hy, cy, workspace = aten.mkldnn_rnn_layer(*args)
    flags = (False, 2, 5, 1, True, True, False, [], True)
    return (*args[:7], output, hy, cy, torch.ones(4, 3, 5), None, None, *flags, workspace)


def batch_norm_backward_arguments():
    x, grad, channels = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5), torch.ones(3)
    return grad, x, *4 * [channels], channels, True, 1e-5, [False, True, True]


def layer_norm_backward_arguments():
    x, weight, bias = torch.randn(2, 6, 8), torch.randn(8), torch.randn(8)
    _, mean, rstd = aten.native_layer_norm(x, [8], weight, bias, 1e-5)
    grad = torch.randn(2, 8, 6).transpose(1, 2)
    return grad, x, [8], mean, rstd, weight, bias, [True, True, True]


def log_softmax_backward_arguments():
    output = torch.randn(2, 6, 8).log_softmax(-1)
    return torch.randn(2, 8, 6).transpose(1, 2), output, -1, torch.float32


GROUP_ENDS = torch.tensor([4, 8, 16], dtype=torch.int32)
LOG_PROBS = torch.randn(12, 2, 7).log_softmax(-1)
TARGETS = torch.randint(1, 7, (2, 5))

EXACT = {
    "lstm": (aten.mkldnn_rnn_layer.default, lstm_arguments),
    "lstm backward": (aten.mkldnn_rnn_layer_backward.default, lstm_backward_arguments),
    "dropout": (
        aten.native_dropout_backward.default,
        lambda: (torch.randn(2, 8, 6).mT, torch.rand(2, 6, 8) < 0.9, 1.1),
    ),
    "batch norm": (aten.native_batch_norm_backward.default, batch_norm_backward_arguments),
    "layer norm": (aten.native_layer_norm_backward.default, layer_norm_backward_arguments),
    "log softmax": (aten._log_softmax_backward_data.default, log_softmax_backward_arguments),
    "groups of rows": (
        aten._grouped_mm.default,
        lambda: (torch.randn(16, 8), torch.randn(3, 8, 12), GROUP_ENDS),
    ),
    "transposed weights": (
        aten._grouped_mm.default,
        lambda: (torch.randn(16, 8), torch.randn(3, 6, 8).mT, GROUP_ENDS),
    ),
    "groups of inner": (
        aten._grouped_mm.default,
        lambda: (torch.randn(8, 16), torch.randn(16, 12), GROUP_ENDS),
    ),
    "groups of columns": (
        aten._grouped_mm.default,
        lambda: (torch.randn(3, 4, 8), torch.randn(8, 16), GROUP_ENDS),
    ),
    "batches": (
        aten._grouped_mm.default,
        lambda: (torch.randn(3, 4, 8), torch.randn(3, 8, 12)),
    ),
    "ctc": (aten._ctc_loss.default, lambda: (LOG_PROBS, TARGETS, [12, 12], [3, 2], 0, True)),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_rule_equals_the_real_run(name):
    op, make_arguments = EXACT[name]
    args = make_arguments()
    assert op not in ASSUMED
    assert describe(run_fake(op, args)) == describe(op(*args))


UNUSUAL = {
    "transposed": lambda: torch.randn(4, 16, 8).mT,
    "channels last": lambda: torch.randn(4, 6, 5, 8).permute(0, 3, 1, 2),
    "turned round": lambda: torch.randn(4, 6, 5, 8).permute(0, 3, 2, 1),
    "batch second": lambda: torch.randn(8, 4, 16).transpose(0, 1),
    "every other": lambda: torch.randn(4, 16, 6)[:, ::2],
}


def normalized(value, *, in_training):
    by_channel = torch.rand(4, value.shape[1]) + 0.5
    return nn.functional.batch_norm(value, *by_channel, training=in_training)


TRAINED = {
    "batch norm": lambda value: normalized(value, in_training=True),
    "batch norm that is not trained": lambda value: normalized(value, in_training=False),
    "elu": nn.functional.elu,
    "hardswish": nn.functional.hardswish,
    "hardsigmoid": nn.functional.hardsigmoid,
    "hardtanh": nn.functional.hardtanh,
    "softplus": nn.functional.softplus,
    "glu": lambda value: nn.functional.glu(value, 1),
    "log sigmoid": nn.functional.logsigmoid,
    "mean square": lambda value: nn.functional.mse_loss(value, torch.ones(value.shape)),
    "smooth": lambda value: nn.functional.smooth_l1_loss(value, torch.ones(value.shape)),
    "huber": lambda value: nn.functional.huber_loss(value, torch.ones(value.shape)),
}


class Compared(TorchDispatchMode):
    """Runs operations for real, and those that have a rule under it as well."""

    def __init__(self):
        super().__init__()
        self.num_compared = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        real = func(*args, **(kwargs or {}))
        if func in FAKE_RULES and func not in ASSUMED:
            assert describe(run_fake(func, args, kwargs)) == describe(real), func
            self.num_compared += 1
        return real


@pytest.mark.parametrize("layout", UNUSUAL)
@pytest.mark.parametrize("name", TRAINED)
def test_rules_hold_in_unusual_layouts(name, layout):
    value = UNUSUAL[layout]().requires_grad_()
    with Compared() as compared:
        result = TRAINED[name](value)
        result.backward(torch.ones(result.shape))
    assert compared.num_compared


def test_lstm_without_gradients_has_no_workspace():
    with torch.no_grad():
        assert run_fake(aten.mkldnn_rnn_layer.default, lstm_arguments())[3] is None


# Values for which the assumption holds, so that the fake result is as large as the real one.
WORST = {
    aten._ctc_loss.Tensor: lambda: (
        *(LOG_PROBS, TARGETS, torch.tensor([12, 12]), torch.tensor([5, 5])),
        *(0, True),
    ),
    aten.nonzero.default: lambda: (torch.ones(3, 4),),
    aten.masked_select.default: lambda: (torch.randn(3, 4), torch.ones(4, dtype=torch.bool)),
    aten.index.Tensor: lambda: (torch.randn(3, 4, 5), [None, torch.ones(4, dtype=torch.bool)]),
    aten._unique2.default: lambda: (torch.arange(6), True, True, True),
    aten.bincount.default: lambda: (torch.tensor([0, 2, 2]), None, 4),
    aten._pack_padded_sequence.default: lambda: (torch.randn(2, 5, 3), torch.tensor([5, 5]), True),
}


def test_every_assumption_has_a_case():
    assert set(WORST) == set(ASSUMED)
    assert set(ASSUMED) <= set(FAKE_RULES)


@pytest.mark.parametrize("op", ASSUMED, ids=str)
def test_assumed_rule_equals_the_largest_real_run(op):
    args = WORST[op]()
    assert describe(run_fake(op, args)) == describe(op(*args))


KNOWN = {
    aten._ctc_loss.Tensor: lambda: (
        *(LOG_PROBS, TARGETS, torch.tensor([12, 12]), torch.tensor([3, 2])),
        *(0, True),
    ),
    aten.nonzero.default: lambda: (torch.eye(4),),
    aten.masked_select.default: lambda: (torch.randn(3, 2), torch.tensor([True, False])),
    aten.index.Tensor: lambda: (torch.randn(2, 3), [torch.tensor([True, False])]),
    aten.bincount.default: lambda: (torch.tensor([0, 6]), None, 4),
    aten._pack_padded_sequence.default: lambda: (
        torch.randn(5, 3, 2),
        torch.tensor([5, 3, 1]),
        False,
    ),
}


@pytest.mark.parametrize("op", KNOWN, ids=str)
def test_known_values_make_an_assumed_rule_exact(op):
    args = KNOWN[op]()
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = FAKE_RULES[op](*args)
    assert describe(fake) == describe(op(*args))


def test_how_many_sequences_run_at_each_step_is_known():
    lengths = torch.tensor([4, 2, 2])
    with FakeTensorMode(allow_non_fake_inputs=True):
        _, num_running = FAKE_RULES[aten._pack_padded_sequence.default](
            torch.randn(3, 4, 2), lengths, True
        )
    assert num_running.tolist() == [3, 3, 1, 1]


def test_bincount_without_bound_is_refused():
    with pytest.raises(torch._subclasses.fake_tensor.DynamicOutputShapeException):
        run_fake(aten.bincount.default, (torch.tensor([0, 6]),))


def test_gradients_pass_through_a_mask():
    with FakeTensorMode(), WithRules():
        x = torch.randn(3, 4, requires_grad=True)
        (x[x > 0].sum() + torch.masked_select(x, x > 0).sum()).backward()
    assert x.grad.shape == (3, 4)


@pytest.mark.parametrize("batch_first", [True, False])
def test_step_of_an_lstm_keeps_its_real_bytes(batch_first):
    def saved():
        sizes = []
        lstm = nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=batch_first)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda each: sizes.append(tuple(each.shape)) or each, lambda each: each
        ):
            output, _ = lstm(torch.randn(4, 3, 6))
        output.sum().backward()
        return sizes, [tuple(param.grad.shape) for param in lstm.parameters()]

    with FakeTensorMode(), WithRules():
        fake = saved()
    assert fake == saved()


def test_ctc_loss_trains_on_fake_tensors():
    with FakeTensorMode(allow_non_fake_inputs=True), WithRules():
        logits = torch.randn(12, 2, 7, requires_grad=True)
        lengths = torch.tensor([12, 12]), torch.tensor([3, 2])
        nn.functional.ctc_loss(logits.log_softmax(-1), TARGETS, *lengths).backward()
    assert logits.grad.shape == (12, 2, 7)


def test_table_of_torch_is_restored():
    def fail():
        with fake_rules():
            assert aten._grouped_mm.default in op_implementations_dict
            assert not set(ASSUMED) & (set(op_implementations_dict) - set(before))
            raise KeyError

    before = dict(op_implementations_dict)
    with pytest.raises(KeyError):
        fail()
    assert op_implementations_dict == before


def test_grouped_product_is_captured_with_the_same_bits():
    torch._dynamo.reset()
    x, weight = torch.randn(16, 8, requires_grad=True), torch.randn(3, 8, 12, requires_grad=True)

    def run(product):
        x.grad = weight.grad = None
        output = product(x, weight, offs=GROUP_ENDS)
        output.square().sum().backward()
        return output, x.grad, weight.grad

    def product(mat_a, mat_b, offs):
        return torch._grouped_mm(mat_a, mat_b, offs=offs)

    expected = run(product)
    with fake_rules():
        captured = run(torch.compile(product, backend="aot_eager", fullgraph=True))
    assert all(torch.equal(one, other) for one, other in zip(captured, expected, strict=True))
    torch._dynamo.reset()


def test_inductor_is_not_left_without_decompositions():
    """It copies torch's table when it is imported, which may be while ours is changed."""
    script = (
        "import torch; from legroom.capture import fake_rules\n"
        "with fake_rules(): import torch._inductor.compile_fx\n"
        "from torch._inductor.decomposition import select_decomp_table\n"
        "assert torch.ops.aten.native_batch_norm_backward.default in select_decomp_table()"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert run.returncode == 0, run.stderr.decode()[-500:]
