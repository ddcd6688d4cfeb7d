import pytest

from legroom.meter._reasons import explain_keep, operation_name


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ("GeluBackward0", "gelu"),
        ("NativeLayerNormBackward0", "native_layer_norm"),
        ("MaxPool2DWithIndicesBackward0", "max_pool2d_with_indices"),
        ("ConvolutionBackward0", "convolution"),
        ("torch::autograd::AccumulateGrad", "accumulate_grad"),
        ("MyFunctionBackward", "my_function"),
    ],
)
def test_nodes_are_called_after_their_operation(node, name):
    assert operation_name(node) == name


@pytest.mark.parametrize(
    ("node", "field", "reason"),
    [
        ("GeluBackward0", "self", "gelu needs its input for its gradient"),
        ("ExpBackward0", "result", "exp needs its own output for its gradient"),
        ("MulBackward0", "other", "mul needs its other operand for its gradient"),
        (
            "MaxPool2DWithIndicesBackward0",
            "result1",
            "max_pool2d_with_indices needs the position of each maximum for its gradient",
        ),
        (
            "MkldnnRnnLayerBackward0",
            "weight1",
            "mkldnn_rnn_layer needs its weight for its gradient",
        ),
        ("FooBackward0", "strange", "foo needs `strange` for its gradient"),
    ],
)
def test_reasons_are_clauses_with_the_operation_as_subject(node, field, reason):
    assert explain_keep(node, field) == reason
