"""A profile as tables in the terminal.

In go a `Profile` and a rich console; out come the verdict, the balanced table of kinds, the
phases, the heaviest lines, the findings and the limits.
"""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from legroom.meter import Kind, LineUse, Profile
from legroom.report._tables import NarrowTable, make_table
from legroom.units import format_bytes, format_ms, format_share


def print_profile(profile: Profile, console: Console, *, num_rows: int = 10) -> None:
    """Print the profile; `num_rows` bounds the tables of lines and findings."""
    _print_verdict(profile, console)
    console.print(_kinds(profile))
    console.print(_phases(profile))
    if profile.lines:
        _print_lines(profile, console, num_rows)
    if any(use.called_peak_bytes for use in profile.lines):
        _print_callers(profile, console, num_rows)
    _print_findings(profile, console, num_rows)
    _print_limits(profile, console)


def place(file: str, line: int, module: str) -> str:
    """Where something happens, in words: `'train.py:12 (encoder.layer.3)'`."""
    if file:
        return f"{file}:{line}" + (f" ({module})" if module else "")
    return module


def verdict(profile: Profile) -> str:
    """The peak, when it happens and what it mostly is, in one or two sentences."""
    largest = max(Kind, key=lambda kind: profile.kinds[kind.value])
    size = profile.kinds[largest.value]
    at = f", while {profile.peak_operation} ran" if profile.peak_operation else ""
    where = place(profile.peak_file, profile.peak_line, profile.peak_module)
    where = f": {where}" if where else ""
    text = (
        f"Peak {format_bytes(profile.peak_bytes)} in {profile.peak_phase}{at}{where}. "
        f"Most of it is {largest.title}: {format_bytes(size)}, "
        f"{format_share(size, profile.peak_bytes)}."
    )
    if not profile.is_complete:
        text += " The step did not end; these are the books up to there."
    return text


def _print_verdict(profile: Profile, console: Console) -> None:
    console.print()
    title = f"{profile.command} · {profile.device} · torch {profile.torch_version}"
    console.print(f"[dim]{escape(title)}[/dim]", highlight=False)
    console.print(f"[bold]{escape(verdict(profile))}[/bold]", highlight=False)
    facts = []
    if profile.step_ms is not None:
        facts.append(f"step {format_ms(profile.step_ms)}")
        facts.append(f"while recorded {format_ms(profile.profiled_ms)}")
    else:
        facts.append(f"recorded step {format_ms(profile.profiled_ms)}")
    if profile.resident_peak_bytes is not None:
        facts.append(
            f"the process grew by {format_bytes(profile.resident_peak_bytes)} over before training"
        )
    facts.append(f"largest stash {format_bytes(profile.largest_stash_bytes)}")
    console.print(" · ".join(facts), highlight=False)
    console.print()


_WIDTHS = {"bytes": 9, "share": 6, "at peak": 9, "stash": 9, "forward": 8, "backward": 8,
           "update": 7, "time": 8, "highest": 9}  # fmt: skip
_LINES = NarrowTable(
    ("at peak", "stash", "forward", "backward", "update", "line", "code"),
    figures=_WIDTHS,
    paths=("line",),
    remarks={"code": 16},
)
_CALLERS = NarrowTable(
    ("at peak", "stash", "time", "line", "code"),
    figures=_WIDTHS,
    paths=("line",),
    remarks={"code": 16},
)


def _table(*columns: str, title: str) -> Table:
    return make_table(*columns, title=title, figures=_WIDTHS, wrapping=("what it is",))


def _kinds(profile: Profile) -> Table:
    table = _table("kind", "bytes", "share", "what it is", title="Memory at the peak")
    for kind in Kind:
        size = profile.kinds[kind.value]
        table.add_row(
            kind.title,
            format_bytes(size),
            format_share(size, profile.peak_bytes),
            f"[dim]{kind.meaning}[/dim]",
        )
    total = sum(profile.kinds.values())
    table.add_row("[bold]total[/bold]", f"[bold]{format_bytes(total)}[/bold]", "100 %", "")
    return table


def _phases(profile: Profile) -> Table:
    table = _table("phase", "time", "highest", title="\nPhases of the step")
    times: dict[str, float] = {}
    peaks: dict[str, int] = {}
    for span in profile.phases:
        times[span.phase] = times.get(span.phase, 0) + span.end_ms - span.start_ms
        peaks[span.phase] = max(peaks.get(span.phase, 0), span.peak_bytes)
    for phase, milliseconds in times.items():
        table.add_row(phase, format_ms(milliseconds), format_bytes(peaks[phase]))
    return table


def _print_lines(profile: Profile, console: Console, num_rows: int) -> None:
    more = len(profile.lines) - num_rows
    _LINES.print(
        [
            (
                format_bytes(use.peak_bytes),
                format_bytes(use.stash_bytes),
                format_ms(use.forward_ms),
                format_ms(use.backward_ms),
                format_ms(use.optimizer_ms),
                f"{use.file}:{use.line}",
                _code(profile, use),
            )
            for use in profile.lines[:num_rows]
        ],
        console,
        title="\nHeaviest lines",
        last=("", "", "", "", "", f"and {more} more", "") if more > 0 else None,
    )


def _print_callers(profile: Profile, console: Console, num_rows: int) -> None:
    """Lines of the user's own that call libraries, with what those cost."""
    own = [use for use in profile.lines if use.is_user]
    own.sort(key=lambda use: -(use.peak_bytes + use.called_peak_bytes))
    _CALLERS.print(
        [
            (
                format_bytes(use.peak_bytes + use.called_peak_bytes),
                format_bytes(use.stash_bytes + use.called_stash_bytes),
                format_ms(use.forward_ms + use.backward_ms + use.optimizer_ms + use.called_ms),
                f"{use.file}:{use.line}",
                _code(profile, use),
            )
            for use in own[:num_rows]
        ],
        console,
        title="\nYour lines, calls included",
    )


def _code(profile: Profile, use: LineUse) -> str:
    text = profile.sources.get(use.file, "").splitlines()
    code = text[use.line - 1].strip() if 0 < use.line <= len(text) else ""
    return code if len(code) <= 60 else code[:57] + "…"


def _print_findings(profile: Profile, console: Console, num_rows: int) -> None:
    if not profile.findings:
        return
    console.print("\n[bold]Findings[/bold]")
    for finding in profile.findings[:num_rows]:
        size = format_bytes(finding.bytes)
        share = format_share(finding.bytes, profile.peak_bytes)
        console.print(f"  [bold]{size}[/bold] ({share}) {escape(finding.title)}", highlight=False)
        where = place(finding.file, finding.line, finding.module)
        where = f"[dim]{escape(where)}[/dim]: " if where else ""
        console.print(f"    {where}{escape(finding.detail)}", highlight=False)
        console.print(f"    try: {escape(finding.remedy)}", highlight=False)


def _print_limits(profile: Profile, console: Console) -> None:
    console.print("\n[bold]Not observed[/bold]")
    for limit in profile.limits:
        size = f" ({format_bytes(limit.bytes)})" if limit.bytes is not None else ""
        console.print(f"  [dim]{escape(limit.text)}{size}[/dim]", highlight=False)
