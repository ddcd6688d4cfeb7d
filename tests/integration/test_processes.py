"""Training in several processes: started by torchrun with legroom inside, or by the script."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
CHILDREN, RANKS = str(SCRIPTS / "children.py"), str(SCRIPTS / "ranks.py")


@pytest.fixture
def python(tmp_path):
    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", *map(str, arguments)],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
            env={
                **os.environ, "LEGROOM_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1",
            },
        )  # fmt: skip

    return run


def legroom_run(*arguments):
    return "legroom", "run", "--budget", "lowest", *arguments


@pytest.mark.parametrize("num_ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_ranks_of_torchrun_train_the_same_bits(python, tmp_path, num_ranks):
    def train(name, *command):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        done = python(
            "torch.distributed.run", "--nproc-per-node", num_ranks, "--master-port", port,
            *command, RANKS, name,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        ranks = range(num_ranks)
        return [(tmp_path / f"{name}-{rank}.txt").read_text() for rank in ranks], done.stderr

    fitted, said = train("fitted", "-m", *legroom_run())
    assert said.count("tensors peaked at") == num_ranks
    assert fitted == train("plain")[0]


@pytest.mark.parametrize(("how", "code"), [("spawn", 0), ("Process", 3)])
def test_training_in_children_is_recognised(python, how, code):
    run = python(*legroom_run(CHILDREN, how))
    assert run.returncode == code
    assert "worker 0: " in run.stdout
    said = " ".join(run.stderr.split())
    assert "ran no backward pass in this process, but started" in said
    assert "what they train has no budget" in said
    assert "without training" not in said


def test_forked_children_are_planned_and_it_is_said(python):
    run = python(*legroom_run(CHILDREN, "fork"))
    assert run.returncode == 0
    assert "the plain step peaks at" in run.stderr
    assert "in each of them the whole budget holds" in " ".join(run.stderr.split())


def test_workers_of_a_loader_are_no_training(python):
    run = python(*legroom_run(CHILDREN, "none"))
    assert run.returncode == 0
    assert "ended without training" in run.stderr


@pytest.mark.parametrize("command", ["plan", "profile", "verify --budget 50%"])
def test_other_commands_say_the_same(python, command):
    run = python("legroom", *command.split(), CHILDREN, "spawn")
    assert run.returncode == 1
    said = " ".join(run.stderr.split())
    assert "started 2 processes to run worker" in said
    assert "try: a script that calls worker in its own process" in said
