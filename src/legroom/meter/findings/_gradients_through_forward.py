"""Finds gradients of the last step that are alive while the next one fills the stash."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from legroom.meter._profile import Finding, Profile
from legroom.meter.findings._base import AbstractFinder, lives_at


@final
class GradientsThroughForward(AbstractFinder):
    """The optimizer has used them, yet they are there until zero_grad, or for ever."""

    name = "gradients-through-forward"
    title = "gradients of the last step stay alive through forward"
    remedy = (
        "call optimizer.zero_grad() (with set_to_none=True, the default) right after "
        "optimizer.step(), not after forward and not with set_to_none=False"
    )

    def find(self, profile: Profile) -> Iterable[Finding]:
        """Gradients from before the step that are still there when forward ends.

        With several backward passes per step gradients are accumulated, and belong there.
        """
        passes = [span.phase for span in profile.phases]
        if passes.count("backward") != 1 or not {"forward", "optimizer"} <= set(passes):
            return ()
        before = profile.phases[: passes.index("backward")]
        forward_ends_ms = max((s.end_ms for s in before if s.phase == "forward"), default=0.0)
        late = [
            t
            for t in profile.tensors
            if t.kind == "gradients" and t.name and t.born_ms <= 0 and lives_at(t, forward_ends_ms)
        ]
        never = sum(t.died_ms is None for t in late)
        how = "never released" if never == len(late) else "released only after forward"
        needed = (
            "; the peak itself is in the optimizer, where gradients are needed in any case"
            if profile.peak_phase == "optimizer"
            else ""
        )
        return self.report(
            profile,
            late,
            f"{{count:gradient}}, {{bytes}}: used up by the last optimizer step, but {how}{needed}",
        )
