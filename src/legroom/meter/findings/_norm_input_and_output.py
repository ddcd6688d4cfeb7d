"""Finds normalisations whose input and output are both kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from legroom.meter._profile import Finding, Keep, Profile, TensorUse
from legroom.meter.findings._base import (
    AbstractFinder,
    keeps_by,
    lives_at,
    num_elements,
    stash_of,
)

_NORMS = frozenset(
    {
        "native_batch_norm",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "native_layer_norm",
        "native_group_norm",
        "fused_rms_norm",
    }
)
_KEEPS_ITS_OUTPUT = frozenset({"relu", "relu_", "threshold"})
_LINES_OF_A_NORM = 4
_CURVES = frozenset({"tanh", "sigmoid", "erf", "exp"})


@final
class NormInputAndOutput(AbstractFinder):
    """The norm keeps its input, the next operation its output: the output is cheap to rebuild."""

    name = "norm-input-and-output"
    title = "input and output of normalisations both kept"
    remedy = (
        "run the norm and the layer after it together under torch.utils.checkpoint "
        "(use_reentrant=False): in backward only the norm is computed again. Batch norm would "
        "update its running statistics twice then; for it use an in-place activated batch norm"
    )

    def find(self, profile: Profile) -> Iterable[Finding]:
        """Kept outputs of norms whose input is kept as well; the outputs are the waste."""
        stash = stash_of(profile)
        native = _native_outputs(profile, stash)
        composed = _composed_outputs(stash) + _handwritten_outputs(profile, stash)
        return self.report(
            profile,
            [*native, *composed],
            "{count:output}, {bytes}, the largest {shape}, kept beside the inputs that they "
            "could be rebuilt from",
        )


def _native_outputs(profile: Profile, stash: list[TensorUse]) -> list[TensorUse]:
    """For each input that a norm keeps, the output, or its ReLU, if that is kept too."""
    outputs = [
        t
        for t in profile.tensors
        if t.kernel.lstrip("_") in _NORMS and t.kind in {"stash", "temporaries_forward"}
    ]
    by_birth = sorted(outputs, key=lambda t: t.born_ms)
    in_stash = {t.id for t in stash}
    found: dict[int, TensorUse] = {}
    for source, keep in _norm_inputs(profile):
        output = _first_after(source, keep, by_birth)
        if output is None:
            continue
        if output.id not in in_stash:
            output = _relu_of(output, stash)
        if output is not None and output.kept_by:
            found[output.id] = output
    return list(found.values())


def _norm_inputs(profile: Profile) -> Iterable[tuple[TensorUse, Keep]]:
    for tensor in profile.tensors:
        for keep in keeps_by(tensor, _NORMS, {"input"}):
            yield tensor, keep


def _first_after(source: TensorUse, keep: Keep, outputs: list[TensorUse]) -> TensorUse | None:
    """The norm's output: the next of the same size that the same line of the same module made."""
    for output in outputs:
        if (
            output.born_ms > source.born_ms
            and (output.module, output.file, output.line) == (keep.module, keep.file, keep.line)
            and num_elements(output) == num_elements(source)
        ):
            return output
    return None


def _relu_of(output: TensorUse, stash: list[TensorUse]) -> TensorUse | None:
    """The ReLU right after the norm, which keeps its result instead of the norm's output."""
    for tensor in stash:
        if (
            tensor.operation in _KEEPS_ITS_OUTPUT
            and tensor.born_ms > output.born_ms
            and lives_at(output, tensor.born_ms)
            and num_elements(tensor) == num_elements(output)
        ):
            return tensor
    return None


def _composed_outputs(stash: list[TensorUse]) -> list[TensorUse]:
    """What F.rms_norm leaves where it has no kernel of its own: normalised, then scaled."""
    made = [t for t in stash if t.operation == "rms_norm" and t.kernel.lstrip("_") not in _NORMS]
    largest: dict[tuple[str, int, str], int] = {}
    for t in made:
        place = (t.file, t.line, t.module)
        largest[place] = max(largest.get(place, 0), num_elements(t))
    # The reciprocal root of each row stays as it is: it is small, and a fused norm keeps it too.
    return [
        t
        for t in made
        if num_elements(t) == largest[t.file, t.line, t.module]
        and t.kernel != "rsqrt"
        and (t.kernel, t.dtype) != ("_to_copy", "float32")  # the input, upcast
    ]


def _handwritten_outputs(profile: Profile, stash: list[TensorUse]) -> list[TensorUse]:
    """What `weight * (x * rsqrt(mean(x**2)))` leaves besides x.

    Recognised by x, which both the square and the product keep; an activation written out may do
    so too, but has a curve in it.
    """
    curves = {(k.file, k.module) for t in stash for k in keeps_by(t, _CURVES)}
    found: dict[int, TensorUse] = {}
    for source in profile.tensors:
        for square in keeps_by(source, {"pow"}, {"self"}):
            place = (square.file, square.module)
            products = [
                keep.line
                for keep in keeps_by(source, {"mul"}, {"self", "other"})
                if (keep.file, keep.module) == place
                and 0 <= keep.line - square.line <= _LINES_OF_A_NORM
            ]
            if not products or not square.line or place in curves:
                continue
            first = min(products)
            found |= {
                t.id: t
                for t in stash
                if t.born_ms > source.born_ms
                and t.kernel in {"mul", "_to_copy"}
                and (t.file, t.module) == place
                and first <= t.line <= first + _LINES_OF_A_NORM
                and num_elements(t) == num_elements(source)
            }
    return list(found.values())
