"""`legroom.offload` around two training steps of every workload: the same bits as without."""

import contextlib

import pytest
import torch

import legroom
from benchmarks import cases
from legroom.tiers import Disk

QUICK = ("mixtral", "dlrm")


def trained(name, context):
    torch.manual_seed(0)
    case = cases.build(name, seed=3)
    with context as session:
        losses = [case.step().item() for _ in range(2)]
    params = [param.detach() for model in case.models for param in model.parameters()]
    return losses, params, session


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in cases.names()],
)
def test_training_is_the_same(name, tmp_path):
    with Disk.open(tmp_path, allow_tmpfs=True).closing() as disk:
        losses, params, _ = trained(name, contextlib.nullcontext())
        context = legroom.offload(
            tier=disk, min_bytes=65536, in_flight_bytes=32 << 20, ahead_bytes=32 << 20
        )
        moved_losses, moved_params, session = trained(name, context)
        assert losses == moved_losses
        assert all(map(torch.equal, params, moved_params))
        assert session.num_moved > 10
        assert disk.in_use().num_slots == 0
