"""Finds embedding tables whose gradient is dense although few rows were looked up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from legroom.meter._profile import Finding, Profile, TensorUse
from legroom.meter.findings._base import AbstractFinder, keeps_by, num_elements
from legroom.units import format_bytes

_LOOKUPS = frozenset({"embedding", "embedding_bag"})
_MOST_TOUCHED = 0.5
"""With more rows touched than this share, a sparse gradient (indices and rows) saves little."""


@final
class DenseEmbeddingGradient(AbstractFinder):
    """A gradient for every row, nearly all of them zero, and optimizer state to match."""

    name = "dense-embedding-gradient"
    title = "a dense gradient for a sparsely used embedding table"
    remedy = (
        "make the table with nn.Embedding(..., sparse=True) and update it with an optimizer of "
        "its own: SGD has no state, SparseAdam keeps that of Adam but touches only the rows in "
        "use; weight decay and clip_grad_norm_ do not take sparse gradients"
    )

    def find(self, profile: Profile) -> Iterable[Finding]:
        """Gradients of tables, without the rows that were looked up.

        A table that also serves as the output projection has a dense gradient by right.
        """
        tables = {
            t.name: t for t in profile.tensors if t.kind == "weights" and t.name and not t.kept_by
        }
        lookups = _rows_touched(profile)
        found: dict[TensorUse, int] = {}
        for gradient in _gradients(profile):
            table = tables.get(gradient.name.removesuffix(".grad"))
            touched = lookups.get(gradient.module)
            if table is None or touched is None or not table.shape:
                continue
            if gradient.bytes < table.bytes:  # sparse: indices and rows
                continue
            rows = table.shape[0]
            if touched <= _MOST_TOUCHED * rows:
                found[gradient] = gradient.bytes * (rows - touched) // rows
        names = {t.name.removesuffix(".grad") for t in found}
        state = sum(
            t.bytes
            for t in profile.tensors
            if t.kind == "optimizer_state" and t.name.rpartition(".")[0] in names
        )
        and_state = f"; the optimizer keeps another {format_bytes(state)} for them" if state else ""
        return self.report(
            profile,
            found,
            f"{{count:gradient}}, {{bytes}}, the largest {{shape}}, few rows looked up{and_state}",
            waste=lambda t: found[t],
        )


def _gradients(profile: Profile) -> Iterable[TensorUse]:
    """The gradient of each parameter in this step: the newest, if there are two."""
    newest: dict[str, TensorUse] = {}
    for tensor in profile.tensors:
        if tensor.kind == "gradients" and tensor.name.endswith(".grad"):
            known = newest.get(tensor.name)
            if known is None or tensor.born_ms > known.born_ms:
                newest[tensor.name] = tensor
    return newest.values()


def _rows_touched(profile: Profile) -> dict[str, int]:
    """How many indices each module looked up: no fewer than the rows that it touched."""
    counts: dict[str, int] = {}
    for tensor in profile.tensors:
        modules = {keep.module for keep in keeps_by(tensor, _LOOKUPS, {"indices"})}
        for module in modules:
            counts[module] = counts.get(module, 0) + num_elements(tensor)
    return counts
