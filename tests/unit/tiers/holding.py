"""What many tests of tiers do."""

import time

import torch


def layout(tensor):
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def same_bits(one, other):
    """Strides and bits, those of NaN included."""
    if layout(one) != layout(other):
        return False
    count = one.numel()
    flat = [each.as_strided((count,), (1,)).contiguous() for each in (one, other)]
    return torch.equal(*(each.view(torch.uint8) for each in flat))


def round_trip(tier, tensor, *, fetched=True, settled=True):
    ticket = tier.put(tensor, label="x")
    if settled:
        ticket = tier.settle(ticket)
    if fetched:
        ticket = tier.fetch(ticket)
    return tier.get(ticket, *layout(tensor))


def used_when_idle(tier):
    """What the tier holds once no write of a dropped tensor is under way."""
    for _ in range(3000):
        used = tier.in_use()
        if not used.in_flight_bytes:
            break
        time.sleep(0.01)
    return used
