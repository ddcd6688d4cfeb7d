"""`torch.compile`, alone and with what it offers for memory: a budget, and 8-bit activations."""

from __future__ import annotations

from typing import Any, final

import torch

from benchmarks.cases import Case
from benchmarks.fitting import model_to_change
from benchmarks.peers._peer import (
    BITWISE,
    COMPILED,
    LOSSY_COMPILED,
    AbstractPeer,
    Entrant,
    Setting,
)

_BUDGETS = (0.5, 0.2, 0.1)
_FROM_MIB = 1
"""The pass leaves tensors below 100 MiB alone, of which these cases have hardly any."""


@final
class Compiled(AbstractPeer):
    """Inductor with its defaults."""

    name = "compile"
    summary = "torch.compile with its defaults (Inductor)"
    exactness = "rounding"
    rival = COMPILED

    def apply(self, case: Case, setting: Setting) -> Entrant:
        """Compile in place."""
        del setting
        model_to_change(case).compile()
        return Entrant(case)


@final
class TorchBudget(AbstractPeer):
    """PyTorch's own knob, with Inductor."""

    name = "torch-budget"
    summary = "torch.compile with activation_memory_budget"
    exactness = "rounding"
    rival = COMPILED
    settings = tuple({"budget": each} for each in _BUDGETS)
    quick_settings = ({"budget": 0.2},)

    def apply(self, case: Case, setting: Setting) -> Entrant:
        """Set the knob, which holds for the whole process, and compile in place."""
        _set_budget(setting["budget"])
        model_to_change(case).compile()
        return Entrant(case)


@final
class TorchBudgetEager(AbstractPeer):
    """The same choice of what to keep, carried out with plain PyTorch's kernels.

    Limits: PyTorch's partitioner may run dropout again, which without Inductor's seeds draws other
    numbers than forward did. Gradients are then wrong, and the table shows by how much.
    """

    name = "torch-budget-eager"
    summary = "activation_memory_budget with eager kernels, called so that memory is freed early"
    exactness = "bitwise"
    rival = BITWISE
    settings = tuple({"budget": each} for each in _BUDGETS)

    def apply(self, case: Case, setting: Setting) -> Entrant:
        """Set the knob and compile in place with a backend that only partitions."""
        _set_budget(setting["budget"])
        torch._functorch.config.donated_buffer = False  # type: ignore[attr-defined]
        model_to_change(case).compile(backend=eager_partitions(), dynamic=False)
        return Entrant(case)


@final
class QuantisedActivations(AbstractPeer):
    """Inductor's pass that keeps activations with eight bits."""

    name = "inductor-fp8"
    summary = "Inductor's activation quantisation pass, tensors from 1 MiB on"
    exactness = "lossy"
    rival = LOSSY_COMPILED
    settings = ({"type": "float8_e5m2"}, {"type": "float8_e4m3fn"})

    def apply(self, case: Case, setting: Setting) -> Entrant:
        """Switch the pass on, which holds for the whole process, and compile in place."""
        import torch._inductor.config as inductor

        inductor.post_grad_fusion_options["activation_quantization_aten_pass"] = {
            "quant_type": f"torch.{setting['type']}",
            "allowed_dtypes": "torch.float32;torch.bfloat16;torch.float16",
            "size_in_mb": _FROM_MIB,
            "use_scaling": True,
            "exclude_primals": True,
        }
        model_to_change(case).compile()
        return Entrant(case)


def eager_partitions() -> Any:
    """A backend of torch.compile: PyTorch's min-cut partitioner, then the eager executor."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    from legroom.engine.graph import choose_executor

    executor = choose_executor("eager", "bitwise")
    return aot_autograd(
        fw_compiler=executor.compile,
        bw_compiler=executor.compile,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )


def _set_budget(budget: float) -> None:
    import torch._functorch.config

    torch._functorch.config.activation_memory_budget = budget
