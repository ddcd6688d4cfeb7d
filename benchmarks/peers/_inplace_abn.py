"""In-Place activated batch norm: activation and norm are inverted from their output."""

from __future__ import annotations

from typing import final

from torch import nn

from benchmarks.cases import Case
from benchmarks.peers._peer import ROUNDING, AbstractPeer, Entrant, NotForCaseError, Setting

_SLOPE = 0.01


@final
class InPlaceABN(AbstractPeer):
    """Takes the place of each batch norm before a ReLU; with another activation and scale.

    Limits: it is another model. A ReLU cannot be inverted, so it becomes a leaky one, and weights
    enter as |γ| + ε; gradients are not those of the plain case.
    """

    name = "inplace-abn"
    summary = "In-Place ABN instead of batch norm and ReLU; changes the model (leaky ReLU)"
    exactness = "rounding"
    rival = ROUNDING
    package = "inplace_abn"
    install = (
        "pip install -c constraints.txt setuptools_scm, then SETUPTOOLS_SCM_PRETEND_VERSION=1.1.0 "
        "pip install --no-build-isolation --no-deps inplace-abn==1.1.0"
    )

    def apply(self, case: Case, setting: Setting) -> Entrant:
        """Swap layers of a ResNet, in which a norm and its activation are members of a module."""
        del setting
        import inplace_abn

        layers = [
            layer
            for layer in case.model.modules()
            if isinstance(getattr(layer, "normalization", None), nn.BatchNorm2d)
            and isinstance(getattr(layer, "activation", None), nn.ReLU)
        ]
        if not layers:
            raise NotForCaseError("has no batch norm that a ReLU follows")
        trained = {id(each) for group in case.optimizer.param_groups for each in group["params"]}
        for layer in layers:
            norm = layer.normalization
            assert isinstance(norm, nn.BatchNorm2d), "checked above"
            swapped = inplace_abn.InPlaceABN(
                norm.num_features,
                eps=norm.eps,
                momentum=norm.momentum,
                activation="leaky_relu",
                activation_param=_SLOPE,
            )
            swapped.weight, swapped.bias = norm.weight, norm.bias  # which the optimizer updates
            assert id(swapped.weight) in trained, "the optimizer would miss it"
            layer.normalization, layer.activation = swapped, nn.Identity()
        return Entrant(case)
