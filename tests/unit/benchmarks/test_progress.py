"""How far a benchmark has come: lines with an estimate where there is no terminal."""

import io

from rich.console import Console

from benchmarks.progress import Told


def test_stored_parts_do_not_shorten_the_estimate() -> None:
    now_s = [0.0]
    out = io.StringIO()
    told = Told("contest", total=10, console=Console(file=out), clock=lambda: now_s[0])
    with told:
        told.done("stored", 5)
        now_s[0] = 60.0
        told.done("measured", 6)
        now_s[0] = 120.0
        told.done("measured", 8)
    assert out.getvalue().splitlines() == [
        "5/10 contest, stored (no estimate yet)",
        "6/10 contest, measured (about 4 min left)",
        "8/10 contest, measured (about 80 s left)",
    ]
    assert told.left(10) == "about 0 s left"
