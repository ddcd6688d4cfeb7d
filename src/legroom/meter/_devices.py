"""Devices that are described rather than present, and the times that follow from it.

In goes a name or a text such as `"24GiB, 12 GB/s to host"`; out comes a `Device`, with signatures
the time of each operation on it, whichever is longer of arithmetic and memory traffic, and how fast
its link to the host is.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import final

from legroom.errors import UsageError
from legroom.meter._costs import OperationTime, cost_of
from legroom.meter._tier_speed import TierSpeed
from legroom.units import parse_bytes

_GIB = 1024**3
_TERA, _GIGA = 1e12, 1e9
_PCIE_3, _PCIE_4, _PCIE_5 = 16 * _GIGA, 32 * _GIGA, 64 * _GIGA  # 16 lanes, one direction
_LAUNCH_MS = 0.005
_HALF_SPEEDUP = 2.0  # what a card without a stated figure gains from 16 bits
_SMALLEST_BYTES = 16 * 1024**2
_HALF_DTYPES = frozenset({"float16", "bfloat16"})
_QUANTITY = re.compile(r"^([0-9]+(?:\.[0-9]+)?)\s*(tflops(?: in 16 bits?)?|gb/s(?: to host)?)$")
_FIELDS = {
    "tflops": ("flops_per_s", _TERA),
    "tflops in 16 bit": ("half_flops_per_s", _TERA),
    "tflops in 16 bits": ("half_flops_per_s", _TERA),
    "gb/s": ("bytes_per_s", _GIGA),
    "gb/s to host": ("host_bytes_per_s", _GIGA),
}
_ALLOWED = (
    "write memory first, then any of 'N TFLOPS', 'N TFLOPS in 16 bits', 'N GB/s', "
    "'N GB/s to host': for example '24GiB, 30 TFLOPS, 500 GB/s, 32 GB/s to host'"
)


@final
@dataclass(frozen=True, slots=True)
class Device:
    """What a device can do at its best.

    Attributes:
        memory_bytes: All of it; the driver's context (0.3–0.6 GiB with CUDA) is part of that.
        flops_per_s: In float32 without tensor cores, as PyTorch computes by default.
        half_flops_per_s: In float16 and bfloat16, without sparsity.
        bytes_per_s: Between the device and its own memory.
        host_bytes_per_s: Between the device and the host, one direction.
        launch_ms: What an operation takes that does nothing.
    """

    name: str
    memory_bytes: int
    flops_per_s: float
    half_flops_per_s: float
    bytes_per_s: float
    host_bytes_per_s: float
    launch_ms: float = _LAUNCH_MS


def _card(
    name: str, gib: int, tflops: tuple[float, float], gb_per_s: float, host_bytes_per_s: float
) -> Device:
    single, half = tflops
    return Device(
        name, gib * _GIB, single * _TERA, half * _TERA, gb_per_s * _GIGA, host_bytes_per_s
    )


# Makers' data sheets. Of cards that come in several forms: the slower, on PCI Express.
_NAMED = (
    _card("A100-40GB", 40, (19.5, 312), 1555, _PCIE_4),
    _card("A100-80GB", 80, (19.5, 312), 1935, _PCIE_4),
    _card("H100-80GB", 80, (51, 756), 2000, _PCIE_5),
    _card("L4", 24, (30.3, 121), 300, _PCIE_4),
    _card("RTX3090", 24, (35.6, 71), 936, _PCIE_4),
    _card("RTX4090", 24, (82.6, 165), 1008, _PCIE_4),
    _card("T4", 16, (8.1, 65), 320, _PCIE_3),
    _card("V100-32GB", 32, (14, 112), 900, _PCIE_3),
)
_MID_RANGE = _card("a mid-range card", 12, (30, 30 * _HALF_SPEEDUP), 500, _PCIE_4)


def device_names() -> tuple[str, ...]:
    """The names that `parse_device` knows, sorted."""
    return tuple(device.name for device in _NAMED)


def parse_device(text: str) -> Device:
    """The device that a text describes.

    Args:
        text: A name from `device_names()` or an amount of memory, then figures that differ,
            separated by commas: `"A100-40GB"`, `"24GiB, 100 GB/s to host"`, `"L4, 16 GB/s to
            host"`. Upper and lower case are alike. What is not said is that of a mid-range card;
            without a figure for 16 bits, those are twice as fast.

    Raises:
        UsageError: The text is malformed or the name unknown; every fault is named.
    """
    first, *rest = [part.strip() for part in text.split(",")]
    faults: list[str] = []
    values: dict[str, float] = {}
    for part in rest:
        match = _QUANTITY.match(" ".join(part.lower().split()))
        field, unit = _FIELDS[match.group(2)] if match else ("", 0.0)
        if match is None or float(match.group(1)) == 0:
            faults.append(f"{part!r} is not a figure")
        elif field in values:
            faults.append(f"{part!r} comes after another figure of the same kind")
        else:
            values[field] = float(match.group(1)) * unit
    if "flops_per_s" in values:
        values.setdefault("half_flops_per_s", values["flops_per_s"] * _HALF_SPEEDUP)
    device = _first_part(first, text.strip(), faults)
    if device is None or faults:
        raise UsageError(f"{text!r} does not describe a device: {'; '.join(faults)}.\n  {_ALLOWED}")
    return replace(device, name=text.strip() if values else device.name, **values)  # type: ignore[arg-type]


def _first_part(first: str, text: str, faults: list[str]) -> Device | None:
    names = {_plain(device.name): device for device in _NAMED}
    if _plain(first) in names:
        return names[_plain(first)]
    if first[:1].isdigit():
        try:
            memory_bytes = parse_bytes(first)
        except UsageError as error:
            faults.insert(0, str(error))
            return None
        if memory_bytes < _SMALLEST_BYTES:
            faults.insert(0, f"{first!r} is {memory_bytes} bytes of memory; is a unit missing?")
            return None
        return replace(_MID_RANGE, name=text, memory_bytes=memory_bytes)
    near = difflib.get_close_matches(_plain(first), names, n=1)
    hint = f" Did you mean {names[near[0]].name!r}?" if near else ""
    known = ", ".join(device_names())
    faults.insert(0, f"{first!r} is neither memory nor a known device ({known}).{hint}")
    return None


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()


def roofline_ms(device: Device, flops: float, num_bytes: float, dtype: str) -> float:
    """The least that an operation takes: arithmetic or traffic, whichever is longer, and a launch.

    Args:
        flops: Of matrix products and the like; elementwise arithmetic is never what takes long.
        num_bytes: Read and written in the device's memory.
        dtype: `"float32"`, `"bfloat16"`.

    Limits: real kernels reach half to nine tenths of a data sheet; float64 counts as float32,
    which flatters cards without units for it.
    """
    rate = device.half_flops_per_s if dtype in _HALF_DTYPES else device.flops_per_s
    return max(flops / rate, num_bytes / device.bytes_per_s) * 1e3 + device.launch_ms


def modelled_host_speed(device: Device) -> TierSpeed:
    """How fast pinned host memory is on a device that need not be here; none is measured.

    A copy takes a launch and its bytes over the link. Computing is not slowed down: copies have
    engines of their own.
    """
    bytes_per_ms, latency_ms = device.host_bytes_per_s / 1e3, device.launch_ms
    return TierSpeed(
        bytes_per_ms_put=bytes_per_ms,
        bytes_per_ms_get=bytes_per_ms,
        latency_ms_put=latency_ms,
        latency_ms_get=latency_ms,
        computing_bytes_per_ms_put=bytes_per_ms,
        computing_bytes_per_ms_get=bytes_per_ms,
        computing_latency_ms_put=latency_ms,
        computing_latency_ms_get=latency_ms,
        compute_slowdown=1.0,
    )


def modelled_times(signatures: Iterable[str], device: Device) -> dict[str, OperationTime]:
    """The time of each operation on a device that need not be here; none is measured."""
    return {signature: _modelled_time(signature, device) for signature in signatures}


def _modelled_time(signature: str, device: Device) -> OperationTime:
    cost = cost_of(signature)
    ms = roofline_ms(device, cost.flops, cost.moved_bytes, cost.dtype)
    return OperationTime(ms, is_measured=False)
