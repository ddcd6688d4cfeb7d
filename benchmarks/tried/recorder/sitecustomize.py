"""Records what a script trains, from inside its own process, without a change to it.

In goes a folder on PYTHONPATH: Python imports this module by itself at its start, in the script's
process and in those that it starts. Out come a file for each process that updated parameters, one
JSON line for each step of an optimizer: digests of all parameters and of the random states, and the
time. Nothing here is imported before the script imports it, and nothing here calls an operation of
torch on a parameter: bytes are read at their address.

TRIED_MODE says what is wanted: `seed` seeds only, `steps` records, and `border` ends the process
as a power cut would at its first trained call, for what a script leaves until then.
"""

from __future__ import annotations

import builtins
import ctypes
import hashlib
import importlib.abc
import importlib.machinery
import json
import os
import random
import sys
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

SEED = 1234
BORDER = "border"


def _seed_torch(torch: Any) -> None:
    torch.manual_seed(SEED)
    mode = os.environ.get("TRIED_MODE")
    if mode == "steps":
        Recorder(torch).install()
    elif mode == BORDER:
        Border(torch).install()


def _seed_numpy(numpy: Any) -> None:
    numpy.random.seed(SEED)


class Recorder:
    """Writes a line after every step of every optimizer of the process that it lives in.

    Steps on tensors that hold no values, as planning takes them, are left out.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._folder = os.environ["TRIED_FOLDER"]
        self._optimizers: list[Any] = []
        self._left_at: tuple[float, float] | None = None

    def install(self) -> None:
        """Have torch call this after every step."""
        # torch.optim takes the name of the module out of itself.
        module = sys.modules["torch.optim.optimizer"]
        module.register_optimizer_step_post_hook(self._after_step)

    def _after_step(self, optimizer: Any, *_: object) -> None:
        came_at = (time.time(), time.process_time())
        if not _is_real(optimizer):
            return
        if not any(each is optimizer for each in self._optimizers):
            self._optimizers.append(optimizer)
        line: dict[str, Any] = {
            "optimizer": next(i for i, each in enumerate(self._optimizers) if each is optimizer),
            "parameters": self._digest(),
            "random": self._random_digests(),
            "at_s": came_at[0],
        }
        if self._left_at is not None:
            line["wall_s"] = came_at[0] - self._left_at[0]
            line["processor_s"] = came_at[1] - self._left_at[1]
        path = os.path.join(self._folder, f"steps-{os.getpid()}.jsonl")
        with _open(path, "a") as file:
            file.write(json.dumps(line) + "\n")
        self._left_at = (time.time(), time.process_time())

    def _digest(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for param in group["params"]:
                    digest.update(_bytes_of(param))
        return digest.hexdigest()

    def _random_digests(self) -> dict[str, str]:
        """By who draws: PyTorch, Python, NumPy."""
        states = {
            "PyTorch": _bytes_of(self._torch.default_generator.get_state()),
            "Python": repr(random.getstate()).encode(),
        }
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            _, keys, position, *_ = numpy.random.get_state(legacy=True)
            states["NumPy"] = keys.tobytes() + str(position).encode()
        return {
            name: hashlib.blake2b(state, digest_size=4).hexdigest()
            for name, state in states.items()
        }


class Border:
    """Ends the process at the first trained call.

    That is the first call of a module in training that has parameters of an optimizer, with
    gradients enabled; or, for scripts without an optimizer, the first backward.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._owned: set[int] = set()

    def install(self) -> None:
        """Watch optimizers being made, modules being called, and backward."""
        torch, owned = self._torch, self._owned
        add_param_group = torch.optim.Optimizer.add_param_group

        def add_and_note(optimizer: Any, param_group: Any) -> None:
            add_param_group(optimizer, param_group)
            owned.update(id(param) for param in optimizer.param_groups[-1]["params"])

        torch.optim.Optimizer.add_param_group = add_and_note
        torch.nn.modules.module.register_module_forward_pre_hook(self._before_call)
        backward = torch.autograd.backward

        def end_or_backward(*arguments: Any, **keywords: Any) -> Any:
            self._end()
            return backward(*arguments, **keywords)

        torch.autograd.backward = end_or_backward

    def _before_call(self, module: Any, *_: object) -> None:
        if not (module.training and self._torch.is_grad_enabled()):
            return
        if any(id(each) in self._owned and each.requires_grad for each in module.parameters()):
            self._end()

    def _end(self) -> None:
        with _open(os.path.join(os.environ["TRIED_FOLDER"], BORDER), "w") as file:
            file.write("met\n")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)


def _is_real(optimizer: Any) -> bool:
    """Whether every parameter holds values."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.device.type == "meta" or hasattr(param, "fake_mode"):
                return False
    return True


def _bytes_of(tensor: Any) -> bytes:
    """The tensor's bytes, those of its storage where it is not contiguous."""
    if tensor.is_sparse:
        return _bytes_of(tensor._indices()) + _bytes_of(tensor._values())
    if tensor.is_contiguous():
        address, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    else:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
    return ctypes.string_at(address, size) if size else b""


class _Finder(importlib.abc.MetaPathFinder):
    """Calls a function after a module was imported for the first time.

    That import leaves Python's random state as it was: rich draws a number when it is imported,
    which legroom does before the script begins, and the script later or not at all.
    """

    def __init__(self, afterwards: dict[str, Callable[[Any], None]]) -> None:
        self._afterwards = afterwards

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """The module as Python would find it, with a loader that calls the function."""
        if fullname not in self._afterwards:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        loader = spec.loader
        execute = loader.exec_module

        # A spec is also asked for by who only wants to know whether the module is there.
        def execute_and_call(module: types.ModuleType) -> None:
            drawn = random.getstate()
            execute(module)
            random.setstate(drawn)
            if (afterwards := self._afterwards.pop(fullname, None)) is not None:
                afterwards(module)

        loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


_open = builtins.open
if "TRIED_MODE" in os.environ:
    random.seed(SEED)
    sys.meta_path.insert(
        0,
        _Finder({"torch": _seed_torch, "numpy": _seed_numpy, "rich.style": lambda _: None}),
    )
