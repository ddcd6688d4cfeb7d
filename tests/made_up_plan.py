"""A plan that nobody made: every field filled, so that reports can be tested without planning."""

from __future__ import annotations

from dataclasses import replace

from legroom.plan import (
    Decision,
    FrontierPoint,
    LiveTensor,
    Plan,
    PlanReport,
    PresetPoint,
    SweepPoint,
)

MIB = 2**20


def decision(i: int, name: str, way: str, mib: int, *, line: int, ms: float = 0.0) -> Decision:
    module = f"transformer.h.{i}.{name}"
    reason = "remaking is cheap" if way == "remake" else "backward needs it at once"
    return Decision(
        tensor=f"{module}.out",
        way=way,
        num_bytes=mib * MIB,
        held_bytes=mib * MIB if way == "hold" else 0,
        added_ms=ms,
        module=module,
        line=f"models/gpt.py:{line}",
        operation="aten.gelu.default",
        reason=reason,
    )


def made_up_chosen() -> Plan:
    decisions = [
        *(decision(i, "mlp.act", "remake", 8, line=40, ms=0.5) for i in range(12)),
        *(decision(i, "attn", "remake", 3, line=22, ms=1.5) for i in range(12)),
        *(decision(i, "dropout", "replay", 2, line=50, ms=0.25) for i in (0, 5)),
        *(decision(i, "mlp.fc", "hold", 6, line=41) for i in range(12)),
    ]
    return Plan(
        budget_bytes=300 * MIB,
        predicted_peak_bytes=298 * MIB,
        added_ms=24.5,
        bound_ms=23.0,
        gap=0.0035,
        preset="milp",
        solve_s=4.2,
        peak_phase="backward",
        decisions=tuple(decisions),
        variants=(("threshold_backward_3", "relu-from-input"),),
        alive_at_peak=(
            LiveTensor("lm_head.addmm", "stash", 64 * MIB, "lm_head", "models/gpt.py:99"),
            LiveTensor("wte.weight", "weights", 40 * MIB, "wte", ""),
        ),
        timeline=tuple((i, (100 + 198 - abs(i - 198)) * MIB) for i in range(0, 400, 2)),
        phases=(("forward", 0), ("backward", 150), ("optimizer", 380)),
    )


def made_up_report() -> PlanReport:
    points = ((512, 512, 0.0, "plain"), (400, 396, 8.0, "milp"), (300, 298, 24.5, "milp"),
              (200, 200, 90.0, "per-block"))  # fmt: skip
    return PlanReport(
        target="python train.py --batch-size 8",
        device="cpu",
        torch_version="2.13.0",
        plain_peak_bytes=512 * MIB,
        floor_peak_bytes=200 * MIB,
        state_bytes=90 * MIB,
        step_ms=400.0,
        measured_share=0.93,
        num_tensors=700,
        num_operations=1200,
        num_pieces=1,
        ways=("hold", "remake", "replay"),
        exactness="bitwise",
        capture_s=3.2,
        solve_s=11.0,
        frontier=tuple(
            FrontierPoint(budget * MIB, peak * MIB, ms, 0.9 * ms, 0.1 * ms / (400 + 0.9 * ms), name)
            for budget, peak, ms, name in points
        ),
        presets=(
            PresetPoint("plain", "hold everything", 512 * MIB, 0.0),
            PresetPoint("per-block", "checkpoint each block", 210 * MIB, 100.0),
        ),
        chosen=made_up_chosen(),
        not_planned=(
            ("2 pieces of DataParallel", "they run in other threads", 5 * MIB),
            ("the loss function", "it is not captured", None),
        ),
        peak_kinds={"stash": 400 * MIB, "weights": 112 * MIB},
        phase_peaks={"forward": 500 * MIB, "backward": 512 * MIB},
    )


def with_sweep(report: PlanReport) -> PlanReport:
    points = tuple(
        SweepPoint(v, 60 * MIB * v, 30 * MIB * v, {"forward": 60 * MIB * v}, fits=v <= 10)
        for v in (1, 4, 10, 11)
    )
    return replace(report, sweep=points, swept_argument="batch-size")


def with_tiers(report: PlanReport) -> PlanReport:
    """The dropouts packed on the disk, and the attention in host memory as it is."""
    assert report.chosen is not None
    moved = {"replay": ("bits", "disk"), "attn": ("host", "host")}
    decisions = []
    for each in report.chosen.decisions:
        way, tier = moved.get(each.way) or moved.get(each.module.split(".")[-1]) or ("", "")
        changed = replace(each, way=way, tier=tier, moved_bytes=each.num_bytes) if way else each
        decisions.append(changed)
    return replace(report, chosen=replace(report.chosen, decisions=tuple(decisions)))
