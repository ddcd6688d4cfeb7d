"""Systems of the literature, as recipes on the graph that legroom captures.

Their own code runs on PyTorch or MXNet of years ago, or on a GPU only. What they keep and what they
run again is what a preset of legroom keeps and runs again; kernels, fusions and early freeing are
legroom's, which is better than what they had.
"""

from __future__ import annotations

from typing import Any, ClassVar

from benchmarks.cases import Case
from benchmarks.fitting import fit_case
from benchmarks.peers._peer import (
    BITWISE,
    LOSSY,
    AbstractPeer,
    Entrant,
    NotForCaseError,
    Setting,
)
from legroom.errors import UsageError

_LEAST = {"budget": "lowest"}


class _Preset(AbstractPeer):
    exactness = "bitwise"
    rival = BITWISE
    settings = (_LEAST,)
    preset: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}

    def apply(self, case: Case, setting: Setting) -> Entrant:
        """Fit by the recipe."""
        try:
            handle = fit_case(case, preset=self.preset, **self.options, **setting)
        except UsageError as error:  # the recipe finds nothing to do
            raise NotForCaseError(str(error)) from error
        return Entrant(case, report=lambda: handle.report().to_dict())


class Chen(_Preset):
    """Chen et al. 2016."""

    name = "chen"
    summary = "√N checkpoints (Chen et al. 2016), legroom's preset `sqrt`"
    preset = "sqrt"


class Checkmate(_Preset):
    """Checkmate 2020."""

    name = "checkmate"
    summary = "Checkmate's rounded relaxation (2020), legroom's preset `checkmate`"
    preset = "checkmate"


class Echo(_Preset):
    """Echo 2020."""

    name = "echo"
    summary = "Echo (2020), legroom's preset `echo`"
    preset = "echo"


class Gist(_Preset):
    """Gist 2018, without loss."""

    name = "gist"
    summary = "Gist's lossless encodings (2018), legroom's preset `gist`"
    preset = "gist"


class GistLossy(_Preset):
    """Gist 2018, with fewer bits."""

    name = "gist-lossy"
    summary = "Gist with delayed precision reduction (2018), legroom's preset `gist-lossy`"
    exactness = "lossy"
    rival = LOSSY
    preset = "gist-lossy"
    options: ClassVar[dict[str, Any]] = {"exactness": "lossy"}


class Tempo(_Preset):
    """Tempo 2022."""

    name = "tempo"
    summary = "Tempo (2022), legroom's preset `tempo`"
    preset = "tempo"


class ActNN(_Preset):
    """ActNN 2021."""

    name = "actnn"
    summary = "ActNN (2021), legroom's preset `actnn`, 2 bits"
    exactness = "lossy"
    rival = LOSSY
    preset = "actnn"
    options: ClassVar[dict[str, Any]] = {
        "exactness": "lossy",
        "ways": ("bits", "offsets", "integer2"),
    }


class _OnDisk(_Preset):
    rival: ClassVar[dict[str, Any]] = {**BITWISE, "disk": True}
    also = (BITWISE,)
    options: ClassVar[dict[str, Any]] = {"disk": True}


class VDNN(_OnDisk):
    """vDNN 2016: everything is moved."""

    name = "vdnn"
    summary = "vDNN (2016) with the disk for the host's memory, legroom's preset `vdnn`"
    preset = "vdnn"


class SuperNeurons(_OnDisk):
    """SuperNeurons 2018: what is costly is moved, the rest run again."""

    name = "superneurons"
    summary = "SuperNeurons (2018) with the disk for the host, legroom's preset `superneurons`"
    preset = "superneurons"
