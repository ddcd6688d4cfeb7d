"""`legroom run` as a user calls it: on scripts, in processes of their own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
WIDE = str(SCRIPTS / "wide_mlp.py")
BLOCKS = str(SCRIPTS / "blocks.py")


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")

    def run(*arguments):
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=folder, capture_output=True, text=True, check=False, timeout=300,
            env={
                **os.environ, "LEGROOM_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1", "COLUMNS": "120",
            },
        )  # fmt: skip

    run.folder = folder
    return run


@pytest.fixture
def legroom(python):
    return lambda *arguments: python("-m", "legroom", *arguments)


def test_script_trains_the_same_within_the_budget(python, legroom):
    plain = python(WIDE)
    assert plain.returncode == 0, plain.stderr
    run = legroom("run", "--activations", "70%", "--json", "run.json", WIDE)
    assert run.returncode == 0, run.stderr
    assert run.stdout == plain.stdout
    data = json.loads((python.folder / "run.json").read_text())
    assert data["schema"] == "legroom.run/1"
    assert data["measured_peak_bytes"] <= data["budget_bytes"] < data["plain_peak_bytes"]
    assert data["predicted_peak_bytes"] <= data["budget_bytes"]
    assert abs(data["measured_peak_bytes"] / data["predicted_peak_bytes"] - 1) < 0.05
    assert data["resident_peak_bytes"] > 0
    assert data["step_ms"] > 0
    assert data["planning_s"] > 0
    assert data["replans"] == 0
    assert data["ways"]["remake"]["tensors"] > 0
    assert data["model"] == "Sequential"
    planned, measured = run.stderr.index("the plain step peaks at"), run.stderr.index("tensors pe")
    assert planned < measured
    assert "kept" in run.stderr[measured:]


@pytest.mark.slow
def test_what_costs_time_is_done_where_nothing_else_fits(legroom, python):
    options = ("run", "--exactness", "rounding", "--time-limit", "5", "--json", "-")
    floor = legroom(*options, "--budget", "lowest", "--without", "chunked-mlp", BLOCKS)
    assert floor.returncode == 0, floor.stderr
    budget = json.loads(floor.stdout)["budget_bytes"] - 2**20
    run = legroom(*options, "--budget", budget, BLOCKS)
    assert run.returncode == 0, run.stderr
    data = json.loads(run.stdout)
    assert data["rewrites"] == ["chunked-mlp"]
    assert data["measured_peak_bytes"] <= budget
    assert "rewritten by chunked-mlp" in " ".join(run.stderr.split())
    losses = [line for line in run.stderr.splitlines() if line[:1].isdigit()]
    assert losses == python(BLOCKS).stdout.splitlines()  # to four digits


def test_json_to_stdout_is_alone_there(legroom):
    run = legroom("run", "--budget", "100%", "--json", "-", WIDE, "--steps", "4")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["schema"] == "legroom.run/1"
    assert "trained to the end" in run.stderr


@pytest.mark.slow
def test_two_models_are_planned_and_listed(legroom, python):
    run = legroom("run", "--budget", "1GiB", "--json", "gan.json", SCRIPTS / "gan.py")
    assert run.returncode == 0, run.stderr
    assert "trained to the end" in run.stdout
    data = json.loads((python.folder / "gan.json").read_text())
    assert [each["model"] for each in data["models"]] == ["Sequential", "Sequential_1"]
    peaks = [each["predicted_peak_bytes"] for each in data["models"]]
    assert data["predicted_peak_bytes"] == max(peaks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "model"),
    [
        ("lightning_module.py", "net"),
        ("trainer.py", "GPT2LMHeadModel"),
        ("distributed_data.py", "Sequential"),
    ],
)
def test_strangers_scripts_run_without_change(legroom, python, script, model):
    run = legroom("run", "--budget", "1GiB", "--json", "out.json", SCRIPTS / script)
    assert run.returncode == 0, run.stderr
    assert "trained to the end" in run.stdout
    data = json.loads((python.folder / "out.json").read_text())
    assert data["model"] == model
    assert 0 < data["measured_peak_bytes"] <= data["budget_bytes"]


def test_modules_can_be_left_alone(legroom, python):
    run = legroom(
        "run", "--budget", "1GiB", "--leave", "Sequential_1", "--json", "left.json",
        SCRIPTS / "gan.py",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    data = json.loads((python.folder / "left.json").read_text())
    assert data["models"] == []
    assert ["Sequential_1", "left as it is: --leave"] in data["not_planned"]


def test_budget_below_the_floor_is_legrooms_error(legroom):
    run = legroom("run", "--budget", "1MiB", WIDE)
    assert run.returncode == 1
    assert "no plan fits 1.00 MiB" in run.stderr
    assert "a budget of at least" in run.stderr


@pytest.mark.parametrize("script", ["accumulating.py", "gan.py"])
def test_the_lowest_budget_that_is_named_works(legroom, python, script):
    refused = legroom("run", "--budget", "100KiB", "--time-limit", "2", SCRIPTS / script)
    assert refused.returncode == 1
    (enough,) = re.findall(r"a budget of at least \S+ \((\d+) bytes\)", refused.stderr)
    run = legroom(
        "run", "--budget", f"{enough}B", "--time-limit", "2", "--json", "low.json", SCRIPTS / script
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == python(SCRIPTS / script).stdout
    data = json.loads((python.folder / "low.json").read_text())
    assert data["measured_peak_bytes"] <= int(enough)
    if script == "accumulating.py":  # of the other, the update sets the peak
        assert int(enough) < data["plain_peak_bytes"]
    assert data["measured_peak_bytes"] == pytest.approx(data["predicted_peak_bytes"], rel=0.005)


def test_a_share_is_named_once_and_kept(legroom, python):
    script = SCRIPTS / "accumulating.py"
    run = legroom("run", "--budget", "80%", "--json", "share.json", script)
    assert run.returncode == 0, run.stderr
    assert run.stdout == python(script).stdout
    data = json.loads((python.folder / "share.json").read_text())
    assert data["measured_peak_bytes"] <= data["budget_bytes"]
    assert len({*re.findall(r"budget (\S+ .iB)", run.stderr)}) == 1
    assert "Traceback" not in run.stderr


def test_failing_script_shows_its_own_traceback(legroom, python):
    run = legroom("run", "--budget", "100%", "--json", "fail.json", WIDE, "--fail-at", "3")
    assert run.returncode == 1
    traceback = run.stderr[run.stderr.index("Traceback") :]
    assert 'raise ValueError("as it was told to")' in traceback
    assert "legroom/engine" not in traceback
    assert "wide_mlp.py failed after step 4 at" in run.stderr
    assert json.loads((python.folder / "fail.json").read_text())["measured_peak_bytes"] > 0


GROWING = """
import torch
layers = [layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.GELU())]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for rows in (256, 256, 8192):
    optimizer.zero_grad()
    model(torch.randn(rows, 64)).square().mean().backward()
    optimizer.step()
"""


def test_a_batch_beyond_the_budget_names_its_step(legroom, python):
    (python.folder / "growing.py").write_text(GROWING)
    run = legroom("run", "--budget", "4MiB", "growing.py")
    assert run.returncode == 1
    assert "after step 3: no plan fits 4.00 MiB" in run.stderr


def test_exit_code_of_the_script_is_kept(legroom):
    assert legroom("run", "--budget", "100%", WIDE, "--exit-at", "3").returncode == 3


def test_script_without_training_says_so(legroom, python):
    (python.folder / "idle.py").write_text("print('nothing')\n")
    run = legroom("run", "--budget", "50%", "idle.py")
    assert run.returncode == 0  # as plain Python's
    assert "ended without training" in run.stderr


@pytest.mark.slow
def test_training_that_calls_no_module_says_so(legroom, python):
    (python.folder / "bare.py").write_text(
        "import torch\n"
        "weight = torch.nn.Parameter(torch.ones(4))\n"
        "optimizer = torch.optim.SGD([weight])\n"
        "for _ in range(5):\n"
        "    (weight ** 2).sum().backward()\n"
        "    optimizer.step()\n"
        "    print('step')\n"
    )
    run = legroom("run", "--budget", "50%", "bare.py")
    assert run.returncode == 1
    assert "no module call of the training step could be captured" in run.stderr
    assert run.stdout.count("step") == 2


def test_interruption_has_its_code(legroom, python):
    text = Path(WIDE).read_text().replace("sys.exit(3)", "raise KeyboardInterrupt")
    (python.folder / "interrupted.py").write_text(text)
    run = legroom("run", "--budget", "100%", "interrupted.py", "--exit-at", "1")
    assert run.returncode == 130
    assert "was interrupted after step 2" in run.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="limits need Linux's RLIMIT_DATA")
def test_limited_process_trains_the_same(python, legroom):
    plain = python(WIDE, "--steps", "4")
    run = legroom("run", "--budget", "1GiB", "--limit", WIDE, "--steps", "4")
    assert run.returncode == 0, run.stderr
    assert run.stdout == plain.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits need Linux's RLIMIT_DATA")
def test_overrun_of_the_limit_is_an_error(legroom, python):
    text = Path(WIDE).read_text().replace("sys.exit(3)", "torch.ones(2**29)")
    (python.folder / "greedy.py").write_text(text)
    run = legroom("run", "--budget", "1GiB", "--limit", "greedy.py", "--exit-at", "2")
    assert run.returncode == 1
    assert "the process met its memory limit: PyTorch asked for 2.00 GiB more" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say how much memory there is: --budget 6GiB"),
        (("--budget", "much"), "budget 'much' is not a size"),
        (("--budget", "50%", "--executor", "inductor"), "changes rounding"),
        (("--budget", "50%", "--executor", "ego"), "unknown executor 'ego'"),
        (("--budget", "50%", "--with", "remkae"), "Did you mean 'remake'?"),
        (("--budget", "50%", "--json", "gone/run.json"), "cannot write"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(legroom, arguments, message):
    run = legroom("run", *arguments, WIDE)
    assert run.returncode == 2
    assert message in run.stderr
    assert run.stdout == ""


def test_freed_memory_can_be_kept(python, legroom):
    run = legroom("run", "--activations", "70%", "--keep-freed", WIDE)
    assert run.returncode == 0, run.stderr
    assert run.stdout == python(WIDE).stdout
    assert "legroom: freed memory stays with the process" in run.stderr
    both = legroom("run", "--activations", "70%", "--keep-freed", "--limit", WIDE)
    assert both.returncode == 2
    assert "--keep-freed keeps all: choose one" in both.stderr
