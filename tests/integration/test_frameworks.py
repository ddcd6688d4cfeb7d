"""Under Trainer, accelerate, Lightning, Fabric: fitted training has the bits of plain."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import legroom
from tests.integration import frameworks
from tests.integration.frameworks import LOOPS, hashes_of

_ALWAYS = {"accelerate", "Trainer"}
_SCRIPT = Path(frameworks.__file__)


def names(always):
    """All loops; those that only the slow run takes are marked so."""
    return [pytest.param(name, marks=() if name in always else pytest.mark.slow) for name in LOOPS]


def script(folder, name, *command):
    """Run one of the loops as a script."""
    done = subprocess.run(
        [sys.executable, *command, str(_SCRIPT), name],
        cwd=folder, capture_output=True, text=True, check=False, timeout=300,
        env={
            **os.environ, "LEGROOM_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def hashes_in(text):
    return [line for line in text.splitlines() if len(line) == 64]


def check_fitted(name, moment):
    handles = []

    def fit(model):
        handles.append(legroom.fit(model, budget="lowest"))

    fitted = hashes_of(LOOPS[name], **{moment: fit})
    (handle,) = handles
    report = handle.report()
    handle.undo()
    assert fitted == hashes_of(LOOPS[name])
    assert report.measured_peak_bytes is not None
    assert report.measured_peak_bytes <= report.budget_bytes
    assert report.predicted_peak_bytes < report.plain_peak_bytes


@pytest.mark.parametrize("name", LOOPS)
def test_what_is_prepared_can_be_fitted(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_fitted(name, "after")


@pytest.mark.parametrize("name", names(_ALWAYS))
def test_what_is_fitted_can_be_prepared(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_fitted(name, "before")


@pytest.mark.parametrize("name", names(_ALWAYS))
def test_run_trains_the_same_bits(name, tmp_path):
    """The script's own hook on all optimizers counts updates: none is made while planning."""
    fitted = script(tmp_path, name, "-m", "legroom", "run", "--budget", "lowest")
    assert len(hashes_in(fitted.stdout)) == frameworks.NUM_STEPS
    assert "tensors peaked at" in fitted.stderr
    assert hashes_in(fitted.stdout) == hashes_in(script(tmp_path, name).stdout)


@pytest.mark.parametrize("name", names({"Lightning"}))
def test_verify_finds_the_same_bits(name, tmp_path):
    verify = "-m", "legroom", "verify", "--budget", "lowest", "--json", "verify.json"
    script(tmp_path, name, *verify)
    data = json.loads((tmp_path / "verify.json").read_text())
    assert data["equal"]
    assert data["run"]["measured_peak_bytes"] is not None
    assert data["compared"]["gradients"] >= data["compared"]["parameters"]
