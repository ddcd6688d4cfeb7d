"""Rule 4: a prediction is tested against a measurement. Here: our books against the allocator."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.training_steps import STEPS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def comparisons():
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.integration.truth", *STEPS],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return {seen["name"]: seen for seen in map(json.loads, run.stdout.splitlines())}


@pytest.mark.parametrize("name", STEPS)
def test_the_peak_is_the_allocators_own(comparisons, name):
    seen = comparisons[name]
    assert seen["peak_bytes"] == seen["truth_bytes"]
    assert sum(seen["kinds"].values()) == seen["peak_bytes"] == seen["highest_moment_bytes"]
    assert seen["num_unbalanced"] == 0
    assert seen["kinds"]["untracked"] <= 0.03 * seen["peak_bytes"]
    assert "unmatched releases" not in seen["limits"]
