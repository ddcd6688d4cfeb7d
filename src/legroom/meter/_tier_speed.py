"""How fast a tier is on this machine: both directions, alone and while something is computed.

In goes a tier; out comes a `TierSpeed`, measured in a second or two or read from the cache folder.
See Note [Tier speed].
"""

# Note [Tier speed]
# 1. Time is latency plus bytes over bandwidth: a line through the medians of a few lengths, each of
#    which counts by how far the line is off in proportion. A length that takes long is tried less
#    often, and longer ones than it not at all, so a slow disk takes no more than some seconds.
# 2. Out: from `put` until it is settled. In: from `fetch` until it is got, new memory included. The
#    file's blocks have been written before, as in every step of a training but the first.
# 3. While computing: the calling thread multiplies matrices, with as many threads as PyTorch uses,
#    and another one does the same as before.
# 4. Where the processor computes, moving slows it down by the processor's time that moving takes;
#    other programs do not count in that. Measured by the wall's clock, products took between 0 and
#    72 % longer on a machine that others were using. An idle core is not counted on: where it was,
#    a ResNet-50 on a busy machine moved, at 1.3 times the time, what runs again almost for nothing.
#    Elsewhere it is how much slower the products are.
# 5. What is cached is never needed: a file that cannot be read or written is left alone.

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from legroom._version import __version__
from legroom.cache import cache_folder
from legroom.capture import real_tensors
from legroom.meter._time_cache import device_name
from legroom.tiers import AbstractTier

OnProgress = Callable[[str, int, int], None]

_SCHEMA = "legroom.tier_speed/3"
_STAGE = "measuring tier {}"
_LENGTHS = {4096: 30, 2**20: 8, 2**23: 5, 2**25: 4}
"""Bytes, and how often each is moved."""
_LENGTH_MS = 250.0
"""After so long, a length has been moved often enough."""
_MATRIX_SIDE = 384
_LEAST_PRODUCTS, _ALONE_MS = 20, 150.0


@final
@dataclass(frozen=True, slots=True)
class TierSpeed:
    """What moving a tensor takes; see Note [Tier speed].

    Attributes:
        bytes_per_ms_put, bytes_per_ms_get: Bandwidth out and in.
        latency_ms_put, latency_ms_get: What a transfer takes beside that.
        computing_bytes_per_ms_put, computing_bytes_per_ms_get, computing_latency_ms_put,
            computing_latency_ms_get: The same while the processor computes.
        compute_slowdown: How many times as long computing takes meanwhile; 1 for not at all.
    """

    bytes_per_ms_put: float
    bytes_per_ms_get: float
    latency_ms_put: float
    latency_ms_get: float
    computing_bytes_per_ms_put: float
    computing_bytes_per_ms_get: float
    computing_latency_ms_put: float
    computing_latency_ms_get: float
    compute_slowdown: float

    def put_ms(self, num_bytes: int, *, computing: bool = True) -> float:
        """Until so many bytes have left."""
        if computing:
            return self.computing_latency_ms_put + num_bytes / self.computing_bytes_per_ms_put
        return self.latency_ms_put + num_bytes / self.bytes_per_ms_put

    def get_ms(self, num_bytes: int, *, computing: bool = True) -> float:
        """Until so many bytes are back."""
        if computing:
            return self.computing_latency_ms_get + num_bytes / self.computing_bytes_per_ms_get
        return self.latency_ms_get + num_bytes / self.bytes_per_ms_get


def tier_speed(
    tier: AbstractTier, *, fresh: bool = False, on_progress: OnProgress | None = None
) -> TierSpeed:
    """How fast the tier is, as measured now or before on this machine.

    Args:
        fresh: Whether to measure again.
        on_progress: Called with a stage, how much of it is done, and how much there is.

    Raises:
        TierError: It cannot be used: it is full, or broken.
    """
    surroundings = {
        **tier.describe(),
        "tier": tier.name,
        "processor": device_name(torch.device(tier.device_type)),
        "compute_threads": str(torch.get_num_threads()),
        "torch": str(torch.__version__),
        "legroom": __version__,
    }
    path = _cache_path(surroundings)
    known = None if fresh else _read(path)
    if known is not None:
        return known
    speed = _measure(tier, on_progress)
    _write(path, surroundings, speed)
    return speed


def _measure(tier: AbstractTier, on_progress: OnProgress | None) -> TierSpeed:
    def report(done: int) -> None:
        if on_progress is not None:
            on_progress(_STAGE.format(tier.name), done, 3)

    with real_tensors(), torch.no_grad(), torch.random.fork_rng([]):
        report(0)
        tier.reserve(2 * max(_LENGTHS))
        _measure_lines(tier, _LENGTHS)  # files, threads and buffers are there from now on
        report(1)
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        put, get = _measure_lines(tier, _LENGTHS)
        cores_taken = (time.process_time() - began_cpu_s) / (time.perf_counter() - began_s)
        report(2)
        before_ms = _computing_alone(tier.device_type)
        (busy_put, busy_get), busy_ms = _while_computing(
            lambda: _measure_lines(tier, _LENGTHS), tier.device_type
        )
        # The quieter one: other programs compute as well.
        alone_ms = min(before_ms, _computing_alone(tier.device_type))
        report(3)
    slowdown = max(1.0, busy_ms / alone_ms)
    if tier.device_type == "cpu":
        slowdown = 1 + cores_taken / torch.get_num_threads()
    return TierSpeed(
        bytes_per_ms_put=put.bytes_per_ms,
        bytes_per_ms_get=get.bytes_per_ms,
        latency_ms_put=put.latency_ms,
        latency_ms_get=get.latency_ms,
        computing_bytes_per_ms_put=busy_put.bytes_per_ms,
        computing_bytes_per_ms_get=busy_get.bytes_per_ms,
        computing_latency_ms_put=busy_put.latency_ms,
        computing_latency_ms_get=busy_get.latency_ms,
        compute_slowdown=slowdown,
    )


@final
@dataclass(frozen=True, slots=True)
class _Line:
    latency_ms: float
    bytes_per_ms: float


def _line_through(times: dict[int, float]) -> _Line:
    """The line whose distances, in proportion to the times, have the least sum of squares."""
    weights = {length: 1 / ms**2 for length, ms in times.items()}
    total = sum(weights.values())
    mean_length = sum(weights[n] * n for n in times) / total
    mean_ms = sum(weights[n] * ms for n, ms in times.items()) / total
    spread = sum(weights[n] * (n - mean_length) ** 2 for n in times)
    slope = sum(weights[n] * (n - mean_length) * (ms - mean_ms) for n, ms in times.items())
    slope = slope / spread if spread else 0.0
    if slope <= 0:  # longer ones took no longer: as if they took nothing but their length
        longest = max(times)
        return _Line(min(times.values()), longest / times[longest])
    return _Line(max(0.0, mean_ms - slope * mean_length), 1 / slope)


def _measure_lines(tier: AbstractTier, lengths: dict[int, int]) -> tuple[_Line, _Line]:
    puts: dict[int, float] = {}
    gets: dict[int, float] = {}
    for num_bytes, times in lengths.items():
        pairs = list(_pairs(tier, num_bytes, times))
        puts[num_bytes] = statistics.median(put for put, _ in pairs)
        gets[num_bytes] = statistics.median(get for _, get in pairs)
        if puts[num_bytes] + gets[num_bytes] > _LENGTH_MS:
            break
    return _line_through(puts), _line_through(gets)


def _pairs(tier: AbstractTier, num_bytes: int, times: int) -> Iterator[tuple[float, float]]:
    """Milliseconds out and in, again and again for a while."""
    tensor = torch.ones(num_bytes, dtype=torch.uint8, device=tier.device_type)
    layout = (tuple(tensor.shape), tensor.stride(), tensor.dtype)
    start = time.perf_counter()
    for _ in range(times):
        began = time.perf_counter()
        ticket = tier.put(tensor, label="a trial of its speed")
        ticket = tier.settle(ticket)
        _finish(tier.device_type)
        left = time.perf_counter()
        ticket = tier.fetch(ticket)
        back = tier.get(ticket, *layout)
        _finish(tier.device_type)
        ended = time.perf_counter()
        del back, ticket
        yield 1e3 * (left - began), 1e3 * (ended - left)
        if 1e3 * (ended - start) > _LENGTH_MS:
            return


def _finish(device_type: str) -> None:
    """What a CUDA device was given to do is done only when it is waited for."""
    if device_type == "cuda":
        torch.cuda.synchronize()


def _while_computing(act: Callable[[], Any], device_type: str = "cpu") -> tuple[Any, float]:
    """What `act` returns in another thread, and the mean of the products in this one meanwhile."""
    outcome: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(act())
        except BaseException as error:  # raised again below
            failure.append(error)

    thread = threading.Thread(target=run, name="legroom-tier-speed")
    thread.start()
    try:
        products = list(_products(lambda count: count > 0 and not thread.is_alive(), device_type))
    finally:
        thread.join()
    if failure:
        raise failure[0]
    return outcome[0], statistics.fmean(products)


def _computing_alone(device_type: str) -> float:
    """The mean of the products where nothing is moved."""
    start = time.perf_counter()

    def is_enough(count: int) -> bool:
        return count >= _LEAST_PRODUCTS and 1e3 * (time.perf_counter() - start) >= _ALONE_MS

    return statistics.fmean(_products(is_enough, device_type))


def _products(is_enough: Callable[[int], bool], device_type: str) -> Iterator[float]:
    """Milliseconds of one product of matrices after the other."""
    one, other = torch.ones(2, _MATRIX_SIDE, _MATRIX_SIDE, device=device_type).unbind()
    out = torch.empty_like(one)
    for _ in range(3):
        torch.mm(one, other, out=out)
    count = 0
    while not is_enough(count):
        began = time.perf_counter()
        torch.mm(one, other, out=out)
        _finish(device_type)
        yield 1e3 * (time.perf_counter() - began)
        count += 1


def _cache_path(surroundings: dict[str, str]) -> Path | None:
    text = json.dumps([_SCHEMA, surroundings], sort_keys=True)
    try:
        folder = cache_folder()
    except RuntimeError:
        return None
    return folder / "tier_speeds" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _read(path: Path | None) -> TierSpeed | None:
    """See Note [Tier speed], rule 5."""
    if path is None:
        return None
    try:
        data = json.loads(path.read_bytes())["speed"]
        speed = TierSpeed(**{name: float(value) for name, value in data.items()})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    values = dataclasses.asdict(speed)
    is_sound = all(math.isfinite(value) and value >= 0 for value in values.values())
    is_moving = all(value > 0 for name, value in values.items() if "per_ms" in name)
    return speed if is_sound and is_moving else None


def _write(path: Path | None, surroundings: dict[str, str], speed: TierSpeed) -> None:
    """Whole or not at all, whoever else writes it."""
    if path is None:
        return
    data = {"schema": _SCHEMA, "surroundings": surroundings, "speed": dataclasses.asdict(speed)}
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(data, file)
        os.replace(name, path)
