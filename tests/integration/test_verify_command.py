"""`legroom verify` as a user calls it: on scripts, in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
WIDE = str(SCRIPTS / "wide_mlp.py")


@pytest.fixture(scope="module")
def legroom(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "legroom", *map(str, arguments)],
            cwd=folder, capture_output=True, text=True, check=False, timeout=300,
            env={
                **os.environ, "LEGROOM_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1",
                "COLUMNS": "120",
            },
        )  # fmt: skip

    run.folder = folder
    return run


def write(folder, name, *changes):
    text = Path(WIDE).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / name).write_text(text)
    return name


def test_fitted_training_is_equal(legroom):
    run = legroom("verify", "--activations", "70%", "--json", "verify.json", WIDE)
    assert run.returncode == 0, run.stderr
    assert "Equal bit for bit" in run.stdout
    assert "trained to the end" not in run.stdout
    data = json.loads((legroom.folder / "verify.json").read_text())
    assert data["schema"] == "legroom.verify/1"
    assert (data["equal"], data["exactness"], data["steps"]) == (True, "bitwise", 3)
    assert data["compared"] == {
        "losses": 3, "gradients": 30, "buffers": 0, "parameters": 30, "optimizer state": 90,
        "random states": 9,
    }  # fmt: skip
    assert data["different"] == []
    assert data["run"]["ways"]["remake"]["tensors"] > 0
    assert data["run"]["measured_peak_bytes"] <= data["run"]["budget_bytes"]


def test_training_from_the_disk_is_equal(legroom):
    run = legroom(
        "verify", "--stash", "20%", "--disk", legroom.folder, "--without", "remake", "--without",
        "replay", "--steps", "2", "--json", "disk.json", WIDE,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "Equal bit for bit" in run.stdout
    data = json.loads((legroom.folder / "disk.json").read_text())
    assert data["run"]["ways"]["disk"]["tensors"] > 0
    assert not [
        each for each in legroom.folder.iterdir() if each.suffix not in (".json", ".py", "")
    ]


def test_training_that_is_different_is_named(legroom):
    # Compiled code is the one thing here that knows whether it is fitted.
    script = write(
        legroom.folder, "differs.py",
        ("def main():", "class Sly(nn.Linear):\n"
         "    def forward(self, value):\n"
         "        return super().forward(value) * (2 if torch.compiler.is_compiling() else 1)\n\n\n"
         "def main():"),
        ("nn.Linear(64, 10)", "Sly(64, 10)"),
    )  # fmt: skip
    run = legroom("verify", "--budget", "lowest", "--steps", "1", "--json", "differs.json", script)
    assert run.returncode == 1, run.stderr
    assert "Different" in run.stdout
    assert "The first is the loss loss in step 1" in run.stdout
    data = json.loads((legroom.folder / "differs.json").read_text())
    assert data["equal"] is False
    first = data["different"][0]
    assert (first["step"], first["kind"]) == (1, "losses")
    assert first["largest_difference"] > 0
    assert {each["kind"] for each in data["different"]} >= {"losses", "gradients", "parameters"}
    assert {each["module"] for each in data["different"]} >= {"12", "9"}


@pytest.mark.slow
def test_script_that_differs_from_itself_is_not_blamed_on_the_plan(legroom):
    run = legroom("verify", "--budget", "100%", "--steps", "1", WIDE, "--noise")
    assert run.returncode == 2
    assert "itself is not repeatable: two plain runs from the same seeds differ" in run.stderr
    assert run.stdout == ""


@pytest.mark.slow
def test_unseeded_scripts_are_seeded(legroom):
    script = write(legroom.folder, "unseeded.py", ("    torch.manual_seed(0)\n", ""))
    run = legroom("verify", "--budget", "100%", "--steps", "1", script)
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
def test_fewer_steps_are_compared_and_said(legroom):
    run = legroom("verify", "--budget", "100%", WIDE, "--steps", "2")
    assert run.returncode == 0, run.stderr
    assert "ended after 2 of 3 steps" in run.stdout


@pytest.mark.slow
def test_plain_step_that_does_not_fit_offers_a_smaller_one(legroom):
    script = write(
        legroom.folder, "large.py",
        ("        optimizer.zero_grad()\n",
         "        if options.batch_size > 100:\n"
         "            raise RuntimeError(\"can't allocate memory: asked for 9 bytes\")\n"
         "        optimizer.zero_grad()\n"),
    )  # fmt: skip
    failed = legroom("verify", "--budget", "100%", script)
    assert failed.returncode == 1
    assert "the plain run of large.py ran out of memory" in failed.stderr
    assert "--smaller batch-size=2" in failed.stderr
    run = legroom(
        "verify", "--budget", "100%", "--steps", "1", "--smaller", "batch-size=64", "--json",
        "smaller.json", script,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    data = json.loads((legroom.folder / "smaller.json").read_text())
    assert data["notes"] == ["a smaller step was compared, with batch-size 64"]


def test_failing_script_shows_its_traceback(legroom):
    run = legroom("verify", "--budget", "100%", WIDE, "--fail-at", "0")
    assert run.returncode == 1
    assert 'raise ValueError("as it was told to")' in run.stderr
    assert "in the plain run: " in run.stderr


@pytest.mark.slow
def test_budget_below_the_floor_is_told(legroom):
    run = legroom("verify", "--budget", "1MiB", "--steps", "1", WIDE)
    assert run.returncode == 1
    assert "in the fitted run: while planning Sequential: no plan fits 1.00 MiB" in run.stderr


def test_script_without_training_says_so(legroom):
    (legroom.folder / "idle.py").write_text("print('nothing')\n")
    run = legroom("verify", "--budget", "50%", "idle.py")
    assert run.returncode == 1
    assert "ended without training" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say how much memory there is: --budget 6GiB"),
        (("--budget", "50%", "--steps", "0"), "0 steps leave nothing to compare"),
        (("--budget", "50%", "--smaller", "two"), "--smaller 'two' is not understood"),
        (("--budget", "50%", "--executor", "inductor"), "changes rounding"),
        (("--budget", "50%", "--tolerance", "0.01"), "compares bits, so it has no tolerance"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(legroom, arguments, message):
    run = legroom("verify", *arguments, WIDE)
    assert run.returncode == 2
    assert message in run.stderr
    assert run.stdout == ""


def test_plan_made_in_the_last_step_is_measured(legroom):
    """What the loop allocates is seen in the first step; the plan of the whole is made after it."""
    beside = "        beside = torch.ones(2**17)\n        loss.backward()\n        del beside\n"
    script = write(legroom.folder, "beside.py", ("        loss.backward()\n", beside))
    run = legroom("verify", "--budget", "2.4MiB", "--steps", "1", "--json", "beside.json", script)
    assert run.returncode == 0, run.stderr
    data = json.loads((legroom.folder / "beside.json").read_text())
    assert data["steps"] == 1
    assert data["run"]["measured_peak_bytes"] <= data["run"]["budget_bytes"]
    assert "not compared, to measure the plan that was made last" in " ".join(data["notes"])
