"""Made-up data for public scripts: formats are readable, and the same bytes come out twice."""

from __future__ import annotations

import csv
import importlib
import json
import pickle
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.tried import commands
from benchmarks.tried.made_up import parts, text
from benchmarks.tried.prepare import HOOK, PrepareError, install_hook, main, prepare
from benchmarks.tried.table import read_table

APART = ("mnist-big", "models", "planetoid")  # large, or in need of what is not installed
SMALL = [name for name in parts.PARTS if name not in APART]


def digests(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("scripts")
    prepare(made, SMALL)
    return made


def test_same_bytes_come_out_twice(folder: Path, tmp_path: Path) -> None:
    prepare(tmp_path, SMALL[::-1])
    assert digests(tmp_path) == digests(folder)


def test_part_is_the_same_when_made_again(tmp_path: Path) -> None:
    prepare(tmp_path, ["alpaca"])
    first = digests(tmp_path)
    (tmp_path / "data" / "alpaca" / "left-over").write_text("x")
    prepare(tmp_path, ["alpaca"])
    assert digests(tmp_path) == first


def test_everything_that_the_table_names_is_made(folder: Path) -> None:
    entries = read_table(Path(commands.__file__).parent / "scripts.toml")
    sources = {source for entry in entries for source, _ in entry.data}
    for entry in entries:
        given = " ".join((*entry.arguments, *entry.environment.values()))
        words = given.replace(":", " ").split()
        sources |= {word.removeprefix("{scripts}/") for word in words if "{scripts}" in word}
    apart = [parts.PARTS[name].folder for name in APART]
    wanted = {each for each in sources if not each.startswith(("src/", *apart))}
    assert len(wanted) > 20
    assert not [each for each in sorted(wanted) if not (folder / each).exists()]


def test_digits_are_idx_files(folder: Path) -> None:
    raw = folder / "data" / "mnist-small" / "MNIST" / "raw"
    images = (raw / "train-images-idx3-ubyte").read_bytes()
    assert struct.unpack(">4I", images[:16]) == (2051, 256, 28, 28)
    assert len(images) == 16 + 256 * 28 * 28
    labels = (raw / "t10k-labels-idx1-ubyte").read_bytes()
    assert struct.unpack(">2I", labels[:8]) == (2049, 100)
    assert set(labels[8:]) == set(range(10))


def test_cifar_is_pickles_of_rows(folder: Path) -> None:
    train = pickle.loads((folder / "data/cifar100-tiny/cifar-100-python/train").read_bytes())
    assert train["data"].shape == (32, 3 * 32 * 32)
    assert train["data"].dtype == np.uint8
    assert len(train["fine_labels"]) == 32


def test_pictures_are_of_their_size(folder: Path) -> None:
    sizes = {
        "imagefolder/train/class3/007.png": 64,
        "imagefolder-tiny/val/class0/001.png": 48,
        "flat/015.png": 64,
        "BSDS300/images/train/011.jpg": 96,
        "monet2photo/test/B/000.jpg": 48,
    }
    for path, pixels in sizes.items():
        with Image.open(folder / "data" / path) as picture:
            assert (picture.size, picture.mode) == ((pixels, pixels), "RGB")
    with Image.open(folder / "data/seg/masks/003.png") as mask:
        assert set(np.unique(np.asarray(mask))) == {0, 1}


def test_citations_name_nodes_that_are_there(folder: Path) -> None:
    rows = [line.split("\t") for line in lines_of(folder / "data/cora/cora.content")]
    numbers = {row[0] for row in rows}
    assert len(numbers) == 1800
    assert len({row[-1] for row in rows}) == 7
    cites = [line.split() for line in lines_of(folder / "data/cora/cora.cites")]
    assert {number for pair in cites for number in pair} <= numbers
    assert all(one != other for one, other in cites)


def test_planetoid_has_a_list_of_neighbours(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    prepare(tmp_path, ["planetoid"])
    raw = tmp_path / "data" / "planetoid" / "Cora" / "raw"
    graph = pickle.loads((raw / "ind.cora.graph").read_bytes())
    assert sorted(graph) == list(range(1000))
    features = pickle.loads((raw / "ind.cora.tx").read_bytes())
    assert features.shape[0] == len((raw / "ind.cora.test.index").read_text().split()) == 300


def test_words_of_later_texts_are_in_the_first(folder: Path) -> None:
    for name in ("wikitext-2", "penn"):
        known = set((folder / "data" / name / "train.txt").read_text().split())
        assert known == set(text.WORDS)
        assert set((folder / "data" / name / "test.txt").read_text().split()) <= known


def test_rows_have_the_columns_that_scripts_read(folder: Path) -> None:
    data = folder / "data"
    with (data / "glue" / "train.csv").open() as file:
        pairs = list(csv.DictReader(file))
    assert [set(row) for row in pairs] == [{"sentence1", "sentence2", "label"}] * 32
    columns = {
        "glue/ner-train.json": {"tokens", "ner_tags"},
        "glue/swag-train.json": {"sent1", "sent2", *(f"ending{n}" for n in range(4)), "label"},
        "hub/nyu-mll/glue/train.jsonl": {"sentence1", "sentence2", "label", "idx"},
        "alpaca/train.jsonl": {"instruction", "input", "output"},
        "trl/train.jsonl": {"text"},
        "trl-dpo/train.jsonl": {"prompt", "chosen", "rejected"},
    }
    for path, names in columns.items():
        rows = [json.loads(line) for line in lines_of(data / path)]
        assert {name for row in rows for name in row} == names


def test_tags_begin_before_they_go_on(folder: Path) -> None:
    for line in lines_of(folder / "data/glue/ner-train.json"):
        row = json.loads(line)
        assert len(row["tokens"]) == len(row["ner_tags"])
        before = ["O", *row["ner_tags"]]
        assert not any(tag == "I-PLACE" and last == "O" for last, tag in pairwise(before))


def test_models_load_from_their_folders(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    prepare(tmp_path, ["models"])
    models = tmp_path / "data" / "models"
    words = transformers.AutoTokenizer.from_pretrained(models / "bert")("kalo susu", "mite")
    assert len(words["input_ids"]) == 6
    assert words["token_type_ids"] == [0, 0, 0, 0, 1, 1]
    for name in ("gpt2", "llama"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(models / name)
        assert tokenizer.decode(tokenizer("kalo susu")["input_ids"]) == "kalo susu"
        model = transformers.AutoModelForCausalLM.from_pretrained(models / name)
        assert model.config.vocab_size == len(tokenizer)
    assert json.loads((models / "unet" / "config.json").read_text())["_class_name"] == "UNet2DModel"
    before = digests(models)
    prepare(tmp_path, ["models"])
    assert digests(models) == before


def test_stubs_do_what_scripts_ask(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder / "stubs"))
    world: Any = importlib.import_module("mpi4py").MPI.COMM_WORLD
    assert (world.Get_rank(), world.Get_size(), world.bcast(3), world.gather(4)) == (0, 1, 3, [4])
    callbacks: Any = importlib.import_module("tensorflow.python.keras.callbacks")
    history = callbacks.History()
    every = callbacks.CallbackList([history])
    every.set_model("model")
    every.on_train_begin()
    every.on_epoch_end(0, {"loss": 1.0})
    assert (history.model, history.history) == ("model", {"loss": [1.0]})
    for name in [name for name in sys.modules if name.split(".")[0] in ("mpi4py", "tensorflow")]:
        monkeypatch.delitem(sys.modules, name)


def test_torchvision_is_imported_without_operators(tmp_path: Path) -> None:
    package = tmp_path / "torchvision"
    (package / "datasets").mkdir(parents=True)
    (package / "__init__.py").write_text("import torchvision.extension\n")
    (package / "extension.py").write_text("def _has_ops():\n    return False\n")
    (package / "datasets" / "__init__.py").write_text("")
    utils = "def check_integrity(fpath, md5=None):\n    return False\n"
    (package / "datasets" / "utils.py").write_text(utils)
    script = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(parts.BESIDE)!r}]\n"
        f"import {HOOK}\n"
        "assert 'torch' not in sys.modules\n"
        "import torch, torchvision\n"
        "from torchvision.datasets.utils import check_integrity\n"
        "torch.library.register_fake('torchvision::nms')(lambda *_: None)\n"
        "print(check_integrity(sys.executable, 'x'), check_integrity('nothing', 'x'))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert run.stdout == "True False\n", run.stderr


def test_hook_goes_into_the_interpreters_packages(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {tmp_path}\n")
    python.chmod(0o755)
    assert install_hook(python) == tmp_path / f"{HOOK}.py"
    assert (tmp_path / f"{HOOK}.pth").read_text() == f"import {HOOK}\n"
    with pytest.raises(PrepareError, match="cannot run '/nowhere/python' as an interpreter"):
        install_hook(Path("/nowhere/python"))


def test_folder_that_cannot_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit):
        main([str(tmp_path / "file"), "--only", "alpaca"])
    assert "as the folder: File exists" in capsys.readouterr().err


def test_unknown_part_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--only", "mnist,corra"])
    assert "unknown part 'corra'; known: stubs, metrics" in capsys.readouterr().err


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(PrepareError, match=r"cannot import what 'models' needs: .*transformers"):
        prepare(tmp_path, ["models"])


def test_progress_names_each_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path), "--only", "alpaca,completions"])
    assert "2/2 made up, completions" in capsys.readouterr().out
