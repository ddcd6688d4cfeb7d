"""Why an operation keeps a tensor, in words.

In go the name of an autograd node and of the field under which it keeps the tensor; out comes a
clause such as "gelu needs its input for its gradient".
"""

from __future__ import annotations

import re

_INPUTS = {"self", "input", "inputs", "x", "input_", "mat1", "grad_output", "batch1"}
_SECOND = {"other", "mat2", "batch2", "exponent", "tensor2", "tensor1", "vec"}
_OUTPUTS = {"result", "output", "result0", "out", "log_sumexp", "logsumexp"}
_SPECIAL = {
    ("max_pool", "result1"): "the position of each maximum",
    ("batch_norm", "result1"): "the batch's mean",
    ("batch_norm", "result2"): "the batch's inverse deviation",
    ("layer_norm", "result1"): "each row's mean",
    ("layer_norm", "result2"): "each row's inverse deviation",
    ("group_norm", "result1"): "each group's mean",
    ("group_norm", "result2"): "each group's inverse deviation",
    ("dropout", "result1"): "its mask",
    ("mkldnn_rnn_layer", "result3"): "the kernel's opaque workspace",
    ("attention", "logsumexp"): "the row sums of its scores",
}
_WORDS = {
    "weight": "its weight",
    "mask": "its mask",
    "indices": "its indices",
    "index": "its indices",
    "target": "its targets",
    "query": "its queries",
    "key": "its keys",
    "value": "its values",
    "running_mean": "its running mean",
    "running_var": "its running variance",
    "total_weight": "the sum of its weights",
    "condition": "its condition",
    "tensors": "what it saved itself",
}


def operation_name(node: str) -> str:
    """The operation behind a node's name: `"NativeLayerNormBackward0"` is `"native_layer_norm"`."""
    name = re.sub(r"Backward(Generated)?\d*$", "", node.rsplit("::", 1)[-1])
    name = re.sub(r"(?<=\d)D", "d", name)  # MaxPool2DWithIndices
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() or node


def explain_keep(node: str, field: str) -> str:
    """The reason, as a clause with the operation as its subject."""
    operation = operation_name(node)
    for (part, special), words in _SPECIAL.items():
        if part in operation and field == special:
            return f"{operation} needs {words} for its gradient"
    if field in _INPUTS:
        what = "its input"
    elif field in _OUTPUTS:
        what = "its own output"
    elif field in _SECOND:
        what = "its other operand"
    else:
        what = _WORDS.get(field.rstrip("_0123456789"), f"`{field}`")
    return f"{operation} needs {what} for its gradient"
