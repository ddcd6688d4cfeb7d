"""The workloads: their registry, their published sizes, their training steps, their scripts.

Every case is built in its published size without memory; a cheap selection of them is stepped.
"""

import subprocess
import sys

import pytest
import torch

from benchmarks import cases
from benchmarks.cases import Case, SizeFieldError, UnknownCaseError, UnknownSizeError
from benchmarks.cases._case import Batches, parse_changes, run
from benchmarks.cases.resnet50 import stage_depths

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
def test_every_case_takes_another_size(name: str) -> None:
    shape = cases.load(name).SIZES["small"]
    with torch.device("meta"):
        cases.build(name, batch=shape.batch + 1)
    with pytest.raises(SizeFieldError, match=rf"a size of case '{name}' has no field 'bach'"):
        cases.build(name, bach=2)
    with pytest.raises(SizeFieldError, match=rf"'batch' of case '{name}' takes int, got '2'"):
        cases.build(name, batch="2")


def test_changed_fields_change_the_model() -> None:
    with torch.device("meta"):
        case = cases.build("gpt2", num_layers=2, width=64)
    assert case.blocks == ("transformer.h.0", "transformer.h.1")
    assert case.model.transformer.wte.weight.shape[1] == 64


def test_blocks_are_spread_as_in_resnet_50() -> None:
    assert stage_depths(16) == (3, 4, 6, 3)
    assert stage_depths(32) == (6, 8, 12, 6)
    for num_blocks in range(4, 200):
        depths = stage_depths(num_blocks)
        assert sum(depths) == num_blocks
        assert min(depths) >= 1
    with pytest.raises(SizeFieldError, match="num_blocks must be at least 4, one for each stage"):
        stage_depths(3)


def test_changes_are_read_from_text() -> None:
    texts = ["batch=16", " stage_widths = (8, 16)"]
    assert parse_changes(texts) == {"batch": 16, "stage_widths": (8, 16)}
    for text in ("batch", "batch=", "batch=many"):
        with pytest.raises(SizeFieldError, match=r"write FIELD=VALUE, for example batch=16"):
            parse_changes([text])


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


def test_script_sets_fields_of_its_size(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dlrm", "--steps", "1", "--set", "batch=4"])
    run(cases.load("dlrm").build)
    assert capsys.readouterr().out.startswith("step 1  loss 0.")
    monkeypatch.setattr(sys, "argv", ["dlrm", "--set", "bach=4"])
    with pytest.raises(SystemExit, match="2"):
        run(cases.load("dlrm").build)
    assert "has no field 'bach'; available: max_rows" in capsys.readouterr().err


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
