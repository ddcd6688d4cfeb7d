"""Moving tensors elsewhere: the operations, and what planning is told of them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from legroom import tiers, ways
from legroom.capture import Kind, OperationInfo, Phase, TensorInfo
from legroom.meter import TierSpeed
from legroom.plan import allowed_ways

SPEED = TierSpeed(
    bytes_per_ms_put=2e6,
    bytes_per_ms_get=1e6,
    latency_ms_put=0.1,
    latency_ms_get=0.2,
    computing_bytes_per_ms_put=1e6,
    computing_bytes_per_ms_get=5e5,
    computing_latency_ms_put=0.1,
    computing_latency_ms_get=0.2,
    compute_slowdown=1.25,
)
PRODUCER = OperationInfo(0, "aten.mm.default", Phase.FORWARD, writes=(0,))


def info_of(num_bytes, **extra):
    extra = {"shape": (num_bytes // 4,), "dtype": "float32", **extra}
    return TensorInfo(0, "t0", kind=Kind.STASH, num_bytes=num_bytes, producer=0, **extra)


@pytest.mark.parametrize("way", [ways.Host, ways.Disk])
def test_both_forms_hold_nothing_and_take_the_tier(way):
    behind, waiting = way.forms(info_of(1 << 20), PRODUCER, SPEED)
    assert behind.tier == waiting.tier == way.tier
    assert behind.held_bytes == waiting.held_bytes == 0
    assert behind.moved_bytes == waiting.moved_bytes == 1 << 20
    assert behind.is_moved
    assert not behind.waits
    assert waiting.waits
    assert behind.leave_ms == pytest.approx(0.1 + 2**20 / 1e6)
    assert behind.put_ms == pytest.approx(0.25 * behind.leave_ms)
    assert waiting.put_ms == 0
    assert waiting.leave_ms < behind.leave_ms


def test_an_encoded_tensor_moves_fewer_bytes():
    encoded = ways.Saving(held_bytes=1 << 18, put_ms=1.0, get_ms=2.0, put_bytes=7, about=(3,))
    behind, waiting = ways.Disk.forms(info_of(1 << 20), PRODUCER, SPEED, encoded)
    assert behind.moved_bytes == waiting.moved_bytes == 1 << 18
    assert behind.put_ms == pytest.approx(1.0 + 0.25 * behind.leave_ms)
    assert (behind.about, behind.put_bytes, behind.held_bytes) == ((3,), 7, 0)


@pytest.mark.parametrize(
    "tensor", [info_of(4096), info_of(1 << 20, shape=(10,))], ids=["small", "not dense"]
)
def test_what_is_not_worth_it_or_not_plain_stays(tensor):
    assert ways.Disk.forms(tensor, PRODUCER, SPEED) == ()


def test_nothing_of_backward_is_moved():
    late = OperationInfo(0, "aten.mm.default", Phase.BACKWARD, writes=(0,))
    assert ways.Disk.forms(info_of(1 << 20), late, SPEED) == ()


@pytest.mark.parametrize("way", [ways.Host, ways.Disk])
def test_it_is_used_on_request_only(way):
    assert way not in ways.select()
    assert way in ways.select((way.name,))
    assert way.name not in allowed_ways("bitwise")


def test_host_memory_is_for_accelerators():
    assert ways.Host.is_for("cuda:1")
    assert not ways.Host.is_for("cpu")
    assert ways.Disk.is_for("cuda")
    assert ways.Disk.is_for("cpu")


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64]),
    st.permutations([3, 5, 7]),
    st.booleans(),
    st.booleans(),
)
def test_the_operations_give_the_same_bits_back(dtype, shape, settles, fetches):
    value = torch.randint(0, 2, shape).to(dtype).permute(2, 0, 1)
    with tiers.use():
        ticket = ways.Disk.put(value, "disk", "a value")
        if settles:
            ticket = ways.Disk.settle(ticket, "disk")
        if fetches:
            ticket = ways.Disk.fetch(ticket, "disk")
        layout = (list(value.shape), list(value.stride()), dtype)
        back = ways.Disk.get(ticket, *layout, "disk")
    assert back.stride() == value.stride()
    assert torch.equal(back, value)
    assert back.data_ptr() != value.data_ptr()


def test_shapes_are_known_without_memory():
    value = torch.empty(6, 4, device="meta").t()
    ticket = ways.Disk.fetch(ways.Disk.settle(ways.Disk.put(value, "disk", ""), "disk"), "disk")
    assert (ticket.shape, ticket.dtype) == ((1,), torch.int64)
    back = ways.Disk.get(ticket, [4, 6], [1, 4], torch.float32, "disk")
    assert (back.shape, back.stride(), back.dtype) == ((4, 6), (1, 4), torch.float32)
