"""Lets torchvision's Python part be imported where its compiled part cannot be loaded.

There is no build of torchvision's operators for every build of torch. Its Python part declares how
two of them behave, which fails where they do not exist. This module, imported at the start of
Python, waits for `torchvision.extension` and then declares those two, without code. It also lets
`torchvision.datasets` take files that are there as they are: made-up data has other digests.

Nothing is imported here but Python's own machinery of imports.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from types import ModuleType
from typing import Any

_DECLARED = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def _declare(extension: Any) -> None:
    if not extension._has_ops() and not hasattr(extension, "_declared"):
        import torch

        extension._declared = torch.library.Library("torchvision", "FRAGMENT")
        for schema in _DECLARED:
            extension._declared.define(schema)


def _take_files_as_they_are(utils: Any) -> None:
    def check_integrity(fpath: str | os.PathLike[str], md5: str | None = None) -> bool:
        return os.path.isfile(fpath)

    utils.check_integrity = check_integrity


_AFTERWARDS = {
    "torchvision.extension": _declare,
    "torchvision.datasets.utils": _take_files_as_they_are,
}


class _Finder(importlib.abc.MetaPathFinder):
    """Finds these two modules as Python does, and calls a function after each was executed."""

    def find_spec(
        self, fullname: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own specification, with a loader that calls the function."""
        if fullname not in _AFTERWARDS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            execute(module)
            _AFTERWARDS[fullname](module)

        loader.exec_module = execute_and_call
        return spec


sys.meta_path.insert(0, _Finder())
