"""Peers that cannot run here: what their authors report, and why there is no row of them.

Figures are the authors' own, on their hardware; nothing was measured by us unless it says so.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unavailable:
    """A system that takes no part.

    Attributes:
        published: Its figure, with the workload where that is known.
        why: What keeps it from running here.
        stand_in: The peer that has the same idea on the same graph; empty if there is none.
    """

    name: str
    published: str
    why: str
    stand_in: str = ""


UNAVAILABLE: tuple[Unavailable, ...] = (
    Unavailable(
        "Checkmate (its code)",
        "up to 5.1 times larger inputs, solved within an hour",
        "TensorFlow 2.0, and Gurobi",
        "checkmate",
    ),
    Unavailable(
        "Echo (its code)",
        "footprint ÷1.89 on average, ÷3.13 at most (LSTM NMT)",
        "a pass of MXNet, which is retired",
        "echo",
    ),
    Unavailable(
        "Gist (its code)",
        "÷1.8 on average, up to ÷2, at 4 % more time",
        "CNTK, never released",
        "gist",
    ),
    Unavailable(
        "Tempo (its code)",
        "batch ×2; BERT-large +16 % throughput",
        "CUDA kernels for PyTorch 1.10; its GELU has a sign error in one branch",
        "tempo",
    ),
    Unavailable(
        "ActNN (its code)",
        "activations ÷12 (ResNet-50, level L3), batch ×6.6–14",
        "CUDA kernels for PyTorch up to 1.8",
        "actnn",
    ),
    Unavailable(
        "GACT", "activations up to ÷8.1, batch ×4.2–24.7", "CUDA kernels for PyTorch 1.10", "actnn"
    ),
    Unavailable(
        "vDNN (its code)", "up to ÷20, 18 % slower", "never released; cuDNN and two devices", "vdnn"
    ),
    Unavailable(
        "Dynamic tensor rematerialisation",
        "its simulator, replayed here: transformer at 0.5, 0.4, 0.3, 0.2 of memory: 1.06, 1.09, "
        "1.12, 1.55 times the computing",
        "a patched PyTorch 1.5; legroom has no preset of it, as it decides while it runs",
    ),
    Unavailable(
        "MONeT",
        "ResNet-50, batch 184: 15.06 → 4.99 GB at +12 %",
        "PyTorch 1.5.1, CUDA, schedules solved for hours",
    ),
    Unavailable(
        "Rockmate",
        "activations ÷2–5 at 10–20 % more time",
        "PyTorch 2.3.0 and transformers 4.36; CUDA is written into it",
    ),
    Unavailable(
        "torchtitan auto_perf_maxing",
        "69 GB budget: 68.9 GiB, +5.6 % over full recomputation",
        "unmerged pull requests; GPU and its own trainer only",
    ),
    Unavailable(
        "few-bit",
        "RoBERTa-base, batch 128: 11.30 → 7.60 GiB with sketched linear layers",
        "does not import with PyTorch 2.13; its fallback without CUDA computes another function",
    ),
    Unavailable(
        "LowMemoryBP", "– (2-bit GELU and SiLU, norms from their output)", "CUDA, PyTorch 2.3.1"
    ),
    Unavailable(
        "DeepSpeed ZeRO-Offload, ZeRO-Infinity",
        "13 billion parameters on one GPU",
        "moves from a GPU to its host, of which there is one here",
    ),
    Unavailable(
        "torchao CPUOffloadOptimizer",
        "ViT-giant, batch 32: 9.82 → 4.01 GB, 1.27 → 1.53 s/it",
        "asks for CUDA or XPU",
    ),
    Unavailable(
        "torchtune and TRL activation offloading", "–", "both raise an error without a GPU"
    ),
    Unavailable(
        "torch sac_milp",
        "– (prints a plan, applies nothing)",
        "its run-time estimator asserts CUDA",
    ),
)
