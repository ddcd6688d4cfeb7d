"""Values that a program reads of tensors without memory, by other ways than `.item()`.

In go `format(tensor, ".3f")`, `tensor.numpy()` and `np.asarray(tensor)`; out come the values that
the recorder knows or makes up, as it does for `.item()`. See Note [Recording], rule 5.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from legroom.capture._real import real_tensors
from legroom.capture._trace import Recorder


@contextlib.contextmanager
def answered_reads(recorder: Recorder) -> Iterator[None]:
    """Answer reads of fake tensors while the context is open; `np.asarray` calls `numpy`.

    Fakes of other modes, TorchDynamo's among them, are left alone.
    """
    fake_class: Any = FakeTensor
    numpy, as_text = fake_class.numpy, fake_class.__format__

    def read_as_array(tensor: Any, *, force: bool = False) -> Any:
        if not recorder.hears(tensor):
            return numpy(tensor, force=force)
        if tensor.requires_grad and torch.is_grad_enabled() and not force:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. "
                "Use tensor.detach().numpy() instead."
            )  # as in a plain run
        values = recorder.values_of(tensor)
        with real_tensors():
            return values.numpy(force=force)

    def read_as_text(tensor: Any, form: str) -> str:
        if tensor.dim() == 0 and recorder.hears(tensor):
            return format(tensor.detach().item(), form)
        return str(as_text(tensor, form))

    fake_class.numpy, fake_class.__format__ = read_as_array, read_as_text
    try:
        yield
    finally:
        del fake_class.numpy, fake_class.__format__
