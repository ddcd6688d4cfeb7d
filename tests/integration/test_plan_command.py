"""`legroom plan` as a user calls it: on scripts, in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
MLP = str(SCRIPTS / "mlp.py")
BLOCKS = str(SCRIPTS / "blocks.py")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def legroom(tmp_path, cache):
    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "legroom", *map(str, arguments)],
            cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, "LEGROOM_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    return run


def test_plan_of_a_script_is_complete(legroom, tmp_path):
    run = legroom(
        "plan", "--activations", "70%", "--points", "4", "--json", "plan.json", "--html",
        "plan.html", MLP, "--batch-size", "2048",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["schema"] == "legroom.plan/1"
    assert plan["floor_peak_bytes"] < plan["plain_peak_bytes"]
    assert plan["predicted_peak_bytes"] <= plan["budget_bytes"] < plan["plain_peak_bytes"]
    assert 0 <= plan["bound_ms"] <= plan["added_ms"]
    ways = {decision["way"] for decision in plan["decisions"]}
    assert ways == {"hold", "remake"}
    added = [point["added_ms"] for point in plan["frontier"]]
    budgets = [point["budget_bytes"] for point in plan["frontier"]]
    assert added == sorted(added)
    assert budgets == sorted(budgets, reverse=True)
    assert all(p["predicted_peak_bytes"] <= p["budget_bytes"] for p in plan["frontier"])
    lines = {decision["line"] for decision in plan["decisions"]}
    assert any("mlp.py" in line for line in lines), lines
    assert "frontier" in (tmp_path / "plan.html").read_text()
    assert "values read at" in " ".join(run.stdout.split())


def test_budget_below_the_floor_names_a_budget_that_works(legroom):
    failed = legroom("plan", "--budget", "1MiB", "--points", "0", MLP, "--batch-size", "2048")
    assert failed.returncode == 1
    assert "no plan fits 1.00 MiB" in failed.stderr
    assert "largest live tensors at that peak" in failed.stderr
    floor = failed.stderr.split("a budget of at least ")[1].split(" (")[0]
    works = legroom("plan", "--budget", floor, "--points", "0", MLP, "--batch-size", "2048")
    assert works.returncode == 0, works.stderr


@pytest.mark.slow
def test_largest_batch_is_confirmed_on_both_sides(legroom, tmp_path):
    run = legroom(
        "plan", "--budget", "6MiB", "--points", "0", "--vary", "batch-size=64:4096:64", "--json",
        "plan.json", MLP,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    tried = {
        point["value"]: point for point in json.loads((tmp_path / "plan.json").read_text())["sweep"]
    }
    largest = max(value for value, point in tried.items() if point["fits"])
    assert not tried[largest + 64]["fits"]
    assert tried[largest]["floor_peak_bytes"] <= 6 * 2**20 < tried[largest + 64]["floor_peak_bytes"]
    assert f"The largest batch-size that fits is {largest}" in run.stdout


def test_plan_for_another_device_says_it_is_modelled(legroom):
    run = legroom(
        "plan", "--device", "24GiB, 2 TFLOPS", "--budget", "8MiB", "--points", "0", MLP,
        "--batch-size", "2048",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "all times modelled" in run.stdout
    assert "The plan for 8.00 MiB" in run.stdout


@pytest.mark.parametrize("num_steps", [1, 4])
def test_what_costs_time_is_captured_however_long_the_script_trains(legroom, num_steps):
    run = legroom(
        "plan", "--exactness", "rounding", "--budget", "lowest", "--points", "0", "--json", "-",
        BLOCKS, "--steps", num_steps,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["rewrites"] == ["chunked-mlp"]


def test_script_without_training_says_so(legroom, tmp_path):
    (tmp_path / "idle.py").write_text("print('nothing')\n")
    run = legroom("plan", "idle.py")
    assert run.returncode == 1
    assert "ended without training" in run.stderr


def test_a_script_of_one_step_is_planned_like_a_longer_one(legroom):
    one, many = (
        json.loads(legroom("plan", "--points", "0", "--json", "-", MLP, "--steps", steps).stdout)
        for steps in (1, 8)
    )
    assert one["num_pieces"] == many["num_pieces"] == 1
    assert one["floor_peak_bytes"] < one["plain_peak_bytes"]
    assert one["plain_peak_bytes"] == pytest.approx(many["plain_peak_bytes"], rel=0.01)


def test_an_error_of_the_users_in_the_first_step_is_theirs(legroom, tmp_path):
    text = Path(MLP).read_text().replace("loss.backward()", "{}['no such key']")
    (tmp_path / "fails.py").write_text(text)
    run = legroom("plan", "fails.py")
    assert run.returncode == 1
    assert "Traceback" in run.stderr
    assert "KeyError: 'no such key'" in run.stderr.splitlines()[-1]
    assert "in its first step" in run.stderr.splitlines()[-1]


def test_what_fails_on_tensors_without_memory_is_measured(legroom, tmp_path):
    text = (
        Path(MLP)
        .read_text()
        .replace("loss.backward()", "loss.data_ptr() or 1 / 0; loss.backward()")
    )
    (tmp_path / "peeks.py").write_text(text)
    run = legroom("plan", "--json", "plan.json", "peeks.py")
    assert run.returncode == 0, run.stderr
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["plain_peak_bytes"] > 2**20
    assert "peeks.py" in plan["not_planned"][0][1]


def test_ctrl_c_while_captured_is_an_interruption(legroom, tmp_path):
    script = tmp_path / "interrupted.py"
    script.write_text(
        "import torch\n"
        "net = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(net.parameters())\n"
        "raise KeyboardInterrupt\n"
    )
    run = legroom("plan", script)
    assert run.returncode == 130, run.stderr
    assert "made up" not in run.stderr.splitlines()[-1]
    assert "was interrupted" in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "much"), "budget 'much' is not a size"),
        (("--budget", "4GiB", "--activations", "50%"), "both"),
        (("--with", "remkae"), "Did you mean 'remake'?"),
        (("--without", "hold"), "'hold' cannot be left out"),
        (("--exactness", "roughly"), "exactness 'roughly' is unknown"),
        (("--device", "toaster"), "toaster"),
        (("--time-limit", "0"), "leaves no time"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(legroom, arguments, message):
    run = legroom("plan", *arguments, MLP)
    assert run.returncode == 2
    assert message in run.stderr
    assert run.stdout == ""


def test_ways_lists_every_registered_one(legroom):
    from legroom import variants, ways

    run = legroom("ways", "--json")
    assert run.returncode == 0, run.stderr
    listed = run.stdout
    assert all(name in listed for name in (*ways.names(), *variants.names()))
