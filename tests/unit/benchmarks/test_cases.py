"""The workloads: their registry, their published sizes, their training steps, their scripts.

Every case is built in its published size without memory; a cheap selection of them is stepped.
"""

import subprocess
import sys

import pytest
import torch

from benchmarks import cases
from benchmarks.cases import Case, UnknownCaseError, UnknownSizeError
from benchmarks.cases._case import Batches, run

# Parameters of the main model in millions, as published, to three digits.
PUBLISHED_MILLIONS = {
    "gpt2": 124,
    "llama": 494,
    "bert": 335,
    "resnet50": 25.6,
    "unet3d": 31.2,
    "vit": 86.6,
    "lstm_nmt": 160,
    "deepspeech2": 86.6,
    "wgan_gp": 1.49,
    "mixtral": 214,
    "dlrm": 541,
    "diffusion": 114,
}
STEPPED = ("lstm_nmt", "wgan_gp", "mixtral", "dlrm")


def step_in_fresh_process(name: str) -> list[str]:
    # The number of threads decides the order of sums, so bits are compared at the same number.
    code = (
        "import torch\n"
        "from benchmarks import cases\n"
        f"torch.set_num_threads({torch.get_num_threads()})\n"
        f"case = cases.build({name!r}, seed=3)\n"
        "for _ in range(3): print(case.step().item().hex())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def is_on_meta(case: Case) -> bool:
    return all(param.is_meta for model in case.models for param in model.parameters())


def test_names_list_the_twelve() -> None:
    assert sorted(cases.names()) == sorted(PUBLISHED_MILLIONS)


def test_unknown_case_suggests_a_name() -> None:
    with pytest.raises(UnknownCaseError, match=r"unknown case 'gtp2'; available: gpt2, llama, .*"):
        cases.load("gtp2")
    with pytest.raises(UnknownCaseError, match=r"Did you mean 'gpt2'\?$"):
        cases.load("gtp2")


def test_unknown_size_suggests_a_size() -> None:
    message = r"unknown size 'papr' of case 'dlrm'; available: small, paper. Did you mean 'paper'\?"
    with pytest.raises(UnknownSizeError, match=message):
        cases.build("dlrm", "papr")


@pytest.mark.parametrize("name", cases.names())
def test_paper_size_is_as_published(name: str) -> None:
    with torch.device("meta"):
        case = cases.build(name, "paper")
    assert (case.name, case.size) == (name, "paper")
    assert is_on_meta(case)
    assert case.model in case.models
    assert case.optimizer in case.optimizers
    assert all(module.training for module in case.model.modules())
    for block in case.blocks:
        case.model.get_submodule(block)
    millions = sum(param.numel() for param in case.model.parameters()) / 1e6
    assert float(f"{millions:.3g}") == PUBLISHED_MILLIONS[name]


@pytest.mark.parametrize("name", STEPPED)
def test_step_gives_every_param_a_gradient(name: str) -> None:
    case = cases.build(name)
    before = [param.detach().clone() for param in case.model.parameters()]
    loss = case.step()
    assert torch.isfinite(loss)
    assert not loss.requires_grad
    without = [fqn for fqn, param in case.model.named_parameters() if param.grad is None]
    assert without == []
    pairs = zip(before, case.model.parameters(), strict=True)
    assert any(not torch.equal(old, new) for old, new in pairs)


def test_loss_leaves_backward_to_caller() -> None:
    case = cases.build("mixtral")
    loss = case.loss()
    assert all(param.grad is None for param in case.model.parameters())
    assert torch.equal(loss, case.loss())
    loss.backward()
    assert all(param.grad is not None for param in case.model.parameters())


def test_rewinding_begins_with_the_first_batch() -> None:
    batches = Batches("abc")
    assert [next(batches) for _ in range(4)] == list("abca")
    batches.rewind()
    assert next(batches) == "a"


@pytest.mark.parametrize("name", ["mixtral", pytest.param("lstm_nmt", marks=pytest.mark.slow)])
def test_same_seed_gives_same_bits(name: str) -> None:
    case = cases.build(name, seed=3)
    here = [case.step().item().hex() for _ in range(3)]
    assert step_in_fresh_process(name) == here


def test_script_prints_a_line_per_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dlrm", "--steps", "2"])
    run(cases.load("dlrm").build)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("step 1  loss 0.")
    assert second.endswith(" ms")


def test_script_rejects_unknown_size(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dlrm", "--size", "smal"])
    with pytest.raises(SystemExit, match="2"):
        run(cases.load("dlrm").build)
    assert "unknown size 'smal' of case 'dlrm'" in capsys.readouterr().err


def test_help_shows_job_and_sizes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dlrm", "--help"])
    with pytest.raises(SystemExit, match="0"):
        run(cases.load("dlrm").build)
    shown = capsys.readouterr().out
    assert "DLRM click prediction" in shown
    assert "paper   Size(max_rows=40000000" in shown
