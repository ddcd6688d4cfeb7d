"""The peers: each changes a tiny case and trains it; exact ones keep its bits."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Iterator

import pytest
import torch
import torch._dynamo
import torch._functorch.config
import torch._inductor.config
from torch import nn

from benchmarks import cases, peers
from benchmarks.peers import NotForCaseError
from benchmarks.peers._compiled import QuantisedActivations
from benchmarks.peers._presets import _Preset
from legroom.errors import UnknownNameError
from legroom.plan import presets
from tests.unit.benchmarks.tiny import NUM_BLOCKS, build_tiny

PRESETS = [name for name in peers.names() if issubclass(peers.get(name), _Preset)]
ELSEWHERE = ("inplace-abn", "gradient-checkpointing", *PRESETS)
"""Tested below, or for models that the tiny one is not."""
SWEPT = [
    (name, setting)
    for name in peers.names()
    for setting in (peers.get(name).settings or ({"budget": "100%"},))[:2]
    if name not in ELSEWHERE
]
WITHOUT_DROPOUT = ("torch-budget-eager",)
"""Which runs it again with other numbers."""


@pytest.fixture(autouse=True)
def process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Peers may set what holds for their whole process; Inductor takes too long for a test."""
    compile_in_place = nn.Module.compile

    def compile_fast(module: nn.Module, **options: object) -> None:
        compile_in_place(module, **{"backend": "aot_eager_decomp_partition", **options})

    monkeypatch.setattr(nn.Module, "compile", compile_fast)
    functorch, inductor = torch._functorch.config, torch._inductor.config
    with functorch.patch(activation_memory_budget=1.0, donated_buffer=False):
        with inductor.patch(post_grad_fusion_options={}):
            yield
    torch._dynamo.reset()


def train(
    name: str | None, setting: dict[str, object], *, has_no_dropout: bool = False
) -> list[str]:
    case = build_tiny(dropout=0.0 if has_no_dropout else 0.1)
    if name is not None:
        torch.manual_seed(1)
        case = peers.get(name)().apply(case, setting).case
    torch.manual_seed(1)
    losses = [case.step().item() for _ in range(2)]
    assert all(math.isfinite(loss) for loss in losses)
    return [loss.hex() for loss in losses]


@functools.cache
def plain_losses(*, has_no_dropout: bool) -> tuple[str, ...]:
    return tuple(train(None, {}, has_no_dropout=has_no_dropout))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "setting"), SWEPT, ids=str)
def test_every_peer_trains_a_case(name: str, setting: dict[str, object]) -> None:
    if peers.get(name).missing():
        pytest.skip(peers.get(name).missing())
    has_no_dropout = name in WITHOUT_DROPOUT
    losses = train(name, setting, has_no_dropout=has_no_dropout)
    if peers.get(name).exactness == "bitwise":
        assert tuple(losses) == plain_losses(has_no_dropout=has_no_dropout)


def test_a_preset_is_carried_out() -> None:
    case = build_tiny()
    entrant = peers.get("chen")().apply(case, {"budget": "lowest"})
    torch.manual_seed(1)
    losses = [entrant.case.step().item().hex() for _ in range(2)]
    assert tuple(losses) == plain_losses(has_no_dropout=False)
    report = entrant.report()
    assert report["preset"] == "sqrt"
    assert report["predicted_peak_bytes"] > 0


@pytest.mark.parametrize("exactness", ["bitwise", "rounding"])
def test_fitting_leaves_the_first_batch_next(exactness: str) -> None:
    # Planning calls the step four times, or five with rewrites: the case has two batches.
    expected = float.fromhex(plain_losses(has_no_dropout=False)[0])
    case = build_tiny()
    setting = {"budget": "100%", "exactness": exactness}
    entrant = peers.get("legroom")().apply(case, setting)
    torch.manual_seed(1)
    assert entrant.case.step().item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_of_peers_exist(name: str) -> None:
    assert peers.get(name).preset in presets.names()


def test_a_recipe_without_work_is_no_case_for_it() -> None:
    with pytest.raises(NotForCaseError, match="preset 'vdnn' changes nothing"):
        peers.get("vdnn")().apply(build_tiny(), {"budget": "lowest"})


@pytest.mark.parametrize("name", peers.names())
def test_every_peer_says_what_it_is(name: str) -> None:
    peer = peers.get(name)
    assert peer.summary
    assert peer.exactness in ("bitwise", "rounding", "lossy")
    assert set(peer.rival) >= {"exactness", "executor"}
    assert set(map(str, peer.quick_settings)) <= set(map(str, peer.settings))


def test_unknown_peer_suggests_a_name() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown peer 'checkpiont'.*'checkpoint'\?"):
        peers.get("checkpiont")


def test_stand_ins_are_peers() -> None:
    for each in peers.UNAVAILABLE:
        assert not each.stand_in or each.stand_in in peers.names()
        assert each.why


def test_segments_halve_the_calls() -> None:
    calls = []
    case = build_tiny()
    original = torch.utils.checkpoint.checkpoint
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "benchmarks.peers._blocks.checkpoint",
            lambda *args, **kwargs: calls.append(1) or original(*args, **kwargs),
        )
        peers.get("checkpoint-segments")().apply(case, {}).case.step()
    assert len(calls) == NUM_BLOCKS / 2


def test_segments_refuse_blocks_that_are_no_chain() -> None:
    with pytest.raises(NotForCaseError, match="its blocks are no chain"):
        peers.get("checkpoint-segments")().apply(build_tiny(has_skips=True), {})


def test_own_checkpointing_is_switched_on() -> None:
    asked = []
    case = build_tiny()
    case.model.gradient_checkpointing_enable = lambda **options: asked.append(options)
    case.model.supports_gradient_checkpointing = True
    peers.get("gradient-checkpointing")().apply(case, {})
    assert asked == [{"gradient_checkpointing_kwargs": {"use_reentrant": False}}]
    case.model.supports_gradient_checkpointing = False
    with pytest.raises(NotForCaseError, match="does not support it"):
        peers.get("gradient-checkpointing")().apply(case, {})


def test_models_without_the_method_are_refused() -> None:
    with pytest.raises(NotForCaseError, match="has no gradient_checkpointing_enable"):
        peers.get("gradient-checkpointing")().apply(build_tiny(), {})
    with pytest.raises(NotForCaseError, match="has no blocks"):
        peers.get("checkpoint")().apply(cases.build("dlrm"), {})


def test_missing_package_says_how_to_get_it() -> None:
    for name in ("torchao-8bit", "inplace-abn"):
        peer = peers.get(name)
        if importlib.util.find_spec(peer.package) is None:
            assert f"{peer.package} is not installed (" in peer.missing()
            assert "pip install" in peer.missing()


def test_quantised_pass_is_switched_on() -> None:
    QuantisedActivations().apply(build_tiny(), {"type": "float8_e5m2"})
    options = torch._inductor.config.post_grad_fusion_options
    assert options["activation_quantization_aten_pass"]["quant_type"] == "torch.float8_e5m2"
