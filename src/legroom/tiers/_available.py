"""How much memory is free, by what the system says."""

from __future__ import annotations

from pathlib import Path

import torch


def available_bytes(device: torch.device) -> int | None:
    """What a program could still be given on a device; None where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
