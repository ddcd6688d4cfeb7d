import dataclasses
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from legroom.meter import SCHEMA, Profile, TensorUse, findings, profile
from legroom.meter._profile import Coverage
from legroom.meter.findings import find_findings, finders

EMPTY = Profile(
    schema=SCHEMA,
    legroom_version="",
    torch_version="",
    python_version="",
    created="",
    command="",
    device="cpu",
    is_complete=True,
    peak_bytes=1000,
    peak_ms=1.0,
    peak_phase="forward",
    peak_operation="",
    peak_file="",
    peak_line=0,
    peak_module="",
    resident_peak_bytes=None,
    resident_before_bytes=None,
    opening_bytes=0,
    largest_stash_bytes=0,
    kinds={},
    step_ms=None,
    profiled_ms=2.0,
    coverage=Coverage(1.0, 1.0, 1.0),
    steps=(),
    phases=(),
    timeline=(),
    lines=(),
    modules=(),
    operations=(),
    tensors=(),
    findings=(),
    limits=(),
    sources={},
)
UNKNOWN = TensorUse(
    id=1,
    bytes=1000,
    kind="untracked",
    name="",
    shape=(),
    dtype="",
    operation="",
    kernel="",
    file="",
    line=0,
    module="",
    born_ms=0.5,
    died_ms=None,
    at_peak=True,
    at_stash_peak=True,
    kept_by=(),
)


def troubled_profile() -> Profile:
    model = nn.Sequential(
        nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Dropout(), nn.Linear(64, 200)
    )
    x, y = torch.randn(64, 16), torch.randint(200, (64,))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step():
        optimizer.zero_grad(set_to_none=False)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return profile(step)


def test_names_of_finders_are_unique():
    names = [finder.name for finder in finders()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("finder", finders(), ids=lambda finder: finder.name)
def test_finder_says_what_and_what_to_do(finder):
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", finder.name)
    assert finder.title
    assert finder.remedy
    assert not finder.remedy.endswith(".")
    assert finder.__doc__


@pytest.mark.parametrize("finder", finders(), ids=lambda finder: finder.name)
def test_finder_has_a_section_in_the_docs(finder):
    docs = Path(__file__).parents[4] / "docs" / "findings.md"
    assert f"## {finder.name}" in docs.read_text(encoding="utf-8").splitlines()


def test_docs_describe_no_finder_that_is_gone():
    docs = Path(__file__).parents[4] / "docs" / "findings.md"
    headings = re.findall(r"^## (.*)$", docs.read_text(encoding="utf-8"), flags=re.M)
    assert headings == sorted(finder.name for finder in finders())


def test_order_of_the_registry_is_irrelevant(monkeypatch):
    troubled = troubled_profile()
    assert len(troubled.findings) >= 4
    monkeypatch.setattr(findings, "_BUILT_IN", tuple(reversed(finders())))
    assert find_findings(troubled) == troubled.findings


def test_findings_are_sorted_by_bytes():
    sizes = [finding.bytes for finding in troubled_profile().findings]
    assert sizes == sorted(sizes, reverse=True)


def test_findings_survive_a_saved_file(tmp_path):
    troubled = troubled_profile()
    troubled.save(tmp_path / "profile.json")
    assert find_findings(Profile.load(tmp_path / "profile.json")) == troubled.findings


def test_profile_without_tensors_has_no_findings():
    assert find_findings(EMPTY) == ()


def test_profile_of_unknown_tensors_has_no_findings():
    tensors = tuple(
        dataclasses.replace(UNKNOWN, id=i, kind=kind)
        for i, kind in enumerate(("untracked", "inputs", "workspace", "stash", "weights"))
    )
    assert find_findings(dataclasses.replace(EMPTY, tensors=tensors)) == ()


def test_small_findings_are_noise():
    tiny = dataclasses.replace(
        UNKNOWN, kind="stash", kernel="dropout", shape=(1,), dtype="float32", bytes=4
    )
    assert find_findings(dataclasses.replace(EMPTY, tensors=(tiny,))) == ()


def test_finding_says_if_it_is_not_at_the_peak():
    mask = dataclasses.replace(
        UNKNOWN, kind="stash", kernel="dropout", shape=(250,), dtype="float32", at_peak=False
    )
    (finding,) = find_findings(dataclasses.replace(EMPTY, tensors=(mask,)))
    assert finding.detail.endswith("none of it is alive at the peak itself, which is in forward")
