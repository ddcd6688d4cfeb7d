"""Compares the simulated plain peak of a step with the measured one.

`python -m tests.integration.plan_truth NAME...` prints one JSON object per name.
"""

import gc
import json
import sys

import torch

from legroom import profile
from legroom.capture import capture_step
from legroom.errors import LegroomError
from legroom.meter import OperationTimes
from legroom.plan import simulate_plain, with_times
from tests.integration.training_steps import STEPS


def compare(name):
    gc.collect()
    torch.manual_seed(0)
    step = STEPS[name]()
    for _ in range(3):
        step()
    try:
        capture = capture_step(step)
    except LegroomError as error:
        return {"name": name, "error": f"{type(error).__name__}: {error}"}
    plain = with_times(capture, OperationTimes(is_cached=False)).plain
    return {
        "name": name,
        "predicted_bytes": simulate_plain(plain).peak_bytes,
        "measured_bytes": profile(step, warmup=0).peak_bytes,
        "num_pieces": capture.planned.num_pieces,
        "not_captured": [each.what for each in capture.planned.not_captured],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in sys.argv[1:]:
        print(json.dumps(compare(each)), flush=True)
