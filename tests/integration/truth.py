"""Compares legroom's peak of a step with the allocator's own count since before the model.

`python -m tests.integration.truth NAME...` prints one JSON object per name.
"""

import gc
import json
import sys

import torch
from torch.profiler import ProfilerActivity, record_function

from benchmarks.meter import allocator_peak_bytes
from legroom import profile
from tests.integration.training_steps import STEPS


def compare(name):
    gc.collect()
    # What earlier comparisons left behind: legroom counts it, the fresh profiler does not.
    before_bytes = profile(lambda: None, warmup=0).opening_bytes
    torch.manual_seed(0)
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step = STEPS[name]()
        for _ in range(3):
            step()
        with record_function("measured"):
            step()
    result = profile(step, warmup=0)
    return {
        "name": name,
        "truth_bytes": before_bytes + allocator_peak_bytes(profiler, within="measured"),
        "peak_bytes": result.peak_bytes,
        "kinds": result.kinds,
        "num_unbalanced": sum(sum(m.kinds.values()) != m.total_bytes for m in result.timeline),
        "highest_moment_bytes": max(m.total_bytes for m in result.timeline),
        "stash_share": result.coverage.stash_share,
        "limits": [limit.name for limit in result.limits],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in sys.argv[1:]:
        print(json.dumps(compare(each)))
