"""Bytes and times: parsing what people write, printing what people read.

Bytes are binary (GiB, MiB, KiB) everywhere; times are milliseconds in names and values.
"""

from __future__ import annotations

import re

from legroom.errors import UsageError

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_FACTORS = {
    "": 1,
    "b": 1,
    **{f"{p}ib": 1024**i for i, p in enumerate("kmgt", start=1)},
    **{f"{p}b": 1000**i for i, p in enumerate("kmgt", start=1)},
}
_SIZE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*$")


def format_bytes(count: int | float) -> str:
    """The count with a binary unit and three or four significant digits: `'1.25 GiB'`."""
    if count == 0:
        return "0"
    sign, value = ("-" if count < 0 else ""), float(abs(count))
    unit = 0
    while value >= 1023.95 and unit < len(_BINARY) - 1:
        value /= 1024
        unit += 1
    if unit == 0:
        return f"{sign}{int(value)} B"
    digits = 2 if value < 9.995 else 1
    return f"{sign}{value:.{digits}f} {_BINARY[unit]}"


def parse_bytes(text: str) -> int:
    """The number of bytes in `'6GiB'`, `'500 MB'` or `'1024'`.

    Raises:
        UsageError: The text is not a size.
    """
    match = _SIZE.match(text)
    factor = _FACTORS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise UsageError(f"{text!r} is not a size; write for example 6GiB, 500MB or 1048576")
    return int(float(match.group(1)) * factor)


def format_ms(milliseconds: float) -> str:
    """The time with a unit that a person reads: `'412 ms'`, `'1.83 s'`, `'85 µs'`."""
    if milliseconds >= 60_000:
        return f"{milliseconds / 60_000:.1f} min"
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.2f} s"
    if milliseconds >= 100:
        return f"{milliseconds:.0f} ms"
    if milliseconds >= 1:
        return f"{milliseconds:.1f} ms"
    if milliseconds == 0:
        return "0"
    return f"{milliseconds * 1000:.0f} µs"


def format_share(part: float, whole: float) -> str:
    """The share in per cent, `'38 %'`; one decimal below ten."""
    if whole <= 0:
        return "–"
    share = 100 * part / whole
    return f"{share:.0f} %" if share >= 9.95 else f"{share:.1f} %"
