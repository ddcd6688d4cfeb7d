"""Finds activation functions whose input and output are both kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from legroom.meter._profile import Finding, Profile, TensorUse
from legroom.meter.findings._base import AbstractFinder, keeps_by, num_elements, stash_of

_KEEP_THEIR_INPUT = frozenset(
    {
        "gelu",
        "silu",
        "mish",
        "elu",
        "celu",
        "softplus",
        "hardswish",
        "hardsigmoid",
        "hardtanh",
        "leaky_relu",
        "log_sigmoid",
    }
)


@final
class ActivationInputAndOutput(AbstractFinder):
    """GELU keeps its input, the linear layer after it the output: one follows from the other."""

    name = "activation-input-and-output"
    title = "input and output of activation functions both kept"
    remedy = (
        "run the activation and the layer after it together under torch.utils.checkpoint "
        "(use_reentrant=False): in backward only the activation is computed again; ReLU needs "
        "its output only, and LeakyReLU with inplace=True too"
    )

    def find(self, profile: Profile) -> Iterable[Finding]:
        """Kept outputs of activation functions whose input is kept as well."""
        stash = stash_of(profile)
        found: dict[int, TensorUse] = {}
        for source in profile.tensors:
            for keep in keeps_by(source, _KEEP_THEIR_INPUT, {"self"}):
                for output in stash:
                    if (
                        output.kernel == keep.operation
                        and output.id not in found
                        and output.born_ms > source.born_ms
                        and (output.module, output.file, output.line)
                        == (keep.module, keep.file, keep.line)
                        # The input may be one half of a larger tensor, as in gated layers.
                        and num_elements(source) % max(1, num_elements(output)) == 0
                    ):
                        found[output.id] = output
                        break
        kinds = ", ".join(sorted({t.kernel for t in found.values()}))
        return self.report(
            profile,
            found.values(),
            f"{{count:output}} ({kinds}), {{bytes}}, the largest {{shape}}, kept beside the "
            "inputs that they follow from",
        )
