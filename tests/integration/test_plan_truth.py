"""Rule 4: a prediction is tested against a measurement. Here: the plain step, simulated."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-W", "ignore", "-m", "tests.integration.plan_truth")
PREDICTED = (
    "plain", "autocast", "lstm", "custom_function", "accumulation", "transformer_encoder",
    "in_place_convolutions", "tied_weights", "stale_views", "exported_to_numpy",
)  # fmt: skip
RARE = (
    "gru", "numpy_inputs", "under_a_device", "frozen_half", "foreach_optimizer",
    "nested_tensor_alive", "graph_before_the_first_module",
)  # fmt: skip
REFUSED = {
    "checkpointed": "saved-tensor hooks",
    "functional": "calls no module",
    "double_backward": "gradients of its gradients",
}


def compared(*names):
    run = subprocess.run([*PROGRAM, *names], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return {seen["name"]: seen for seen in map(json.loads, run.stdout.splitlines())}


@pytest.fixture(scope="module")
def comparisons():
    return compared(*PREDICTED, *REFUSED)


@pytest.fixture(scope="module")
def rare_comparisons():
    return compared(*RARE)


def check_prediction(seen):
    assert "error" not in seen, seen
    assert seen["num_pieces"] >= 1
    assert seen["predicted_bytes"] == pytest.approx(seen["measured_bytes"], rel=0.02), seen


@pytest.mark.parametrize("name", PREDICTED)
def test_the_simulated_plain_peak_is_the_measured_one(comparisons, name):
    check_prediction(comparisons[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", RARE)
def test_so_it_is_of_rare_steps(rare_comparisons, name):
    check_prediction(rare_comparisons[name])


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_captured_says_why(comparisons, name):
    assert REFUSED[name] in comparisons[name]["error"]
