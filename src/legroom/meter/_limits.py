"""What was not observed, in words and bytes.

In go a recording and its ledger; out comes the list that every report shows. Nothing is silently
ignored: what legroom could not see, it says.
"""

from __future__ import annotations

from legroom.capture import Kind
from legroom.meter._ledger import Ledger
from legroom.meter._profile import Limit
from legroom.meter._recorder import Recording


def find_limits(recording: Recording, ledger: Ledger, notes: tuple[str, ...]) -> tuple[Limit, ...]:
    """Everything that this profile does not show."""
    limits = [Limit("note", text) for text in notes]
    if not recording.has_lines:
        limits.append(
            Limit(
                "compiled",
                "torch.compile'd code is in use: its memory is measured, but inside it there are "
                "no source lines and no module paths, and forward has no modules to show",
            )
        )
    if recording.has_transforms:
        limits.append(
            Limit(
                "torch.func",
                "transforms of torch.func are in use, and PyTorch's profiler keeps their tensors "
                "alive: the peak is too high; let the script train a step more"
                if recording.has_inputs
                else "transforms of torch.func are in use: recorded without what operations read, "
                "so lines of weights and tensors that a checkpoint holds are not told apart",
            )
        )
    if recording.opaque_nodes:
        names = ", ".join(sorted(recording.opaque_nodes)[:5])
        limits.append(
            Limit(
                "opaque nodes",
                f"these autograd nodes do not show what they keep ({names}): tensors that only "
                "they keep are counted as temporaries, not as stash",
            )
        )
    foreign_bytes = sum(recording.opening.foreign.values())
    if foreign_bytes:
        limits.append(
            Limit(
                "memory of others",
                "data over memory of NumPy's, or handed to NumPy with `.numpy()`: PyTorch does not "
                "tell the two apart, and they are not in the books",
                foreign_bytes,
            )
        )
    if ledger.unknown_bytes:
        limits.append(
            Limit(
                "memory of unknown origin",
                "operations read memory whose allocation was not seen: arrays of NumPy made within "
                "the step, memory allocated on another thread, or buffers from before it that only "
                "C++ holds (DDP's buckets). It is not in the books; it is at least as large as",
                ledger.unknown_bytes,
            )
        )
    if ledger.unmatched_bytes:
        limits.append(
            Limit(
                "unmatched releases",
                "the allocator released blocks whose allocation was not seen",
                ledger.unmatched_bytes,
            )
        )
    untracked = sum(b.num_bytes for b in ledger.blocks if b.kind is Kind.UNTRACKED)
    if untracked:
        limits.append(
            Limit(
                "untracked",
                "blocks allocated outside every operation",
                untracked,
            )
        )
    limits.append(
        Limit(
            "outside the allocator",
            "scratch memory that kernels take from the system themselves (oneDNN, MKL), Python "
            "objects and the CUDA context are in the resident figure only",
        )
    )
    if recording.device.type != "cpu":
        limits.append(
            Limit(
                "device times",
                f"times are those of the calls from Python; on {recording.device.type} kernels "
                "may run later than that. This path has not been tested",
            )
        )
    return tuple(limits)
