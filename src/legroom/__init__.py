"""legroom makes PyTorch training fit.

It shows where a training step's memory and time go (`legroom.profile(step)`), says before you train
what would fit and what it would cost (`legroom.plan(step)`), and then trains within that budget
(`legroom.fit(model, budget="6GiB")`), with proof that it is the same training
(`legroom.verify(step)`). `legroom profile`, `legroom plan`, `legroom run` and `legroom verify` do
the same for a script, from the command line. `legroom.swap(model)` puts leaner layers into a model,
and `legroom.offload()` moves what autograd saves to the disk, for training without a plan.
`legroom.return_freed_memory()` lets the process shrink with what PyTorch frees, and
`legroom.keep_freed_memory()` has steps on a CPU touch no new pages, which makes them shorter.
"""

from legroom._version import __version__
from legroom.engine import (
    Fitted,
    RunReport,
    Verification,
    fit,
    keep_freed_memory,
    offload,
    return_freed_memory,
    verify,
)
from legroom.errors import LegroomError
from legroom.layers import swap
from legroom.meter import Profile, profile
from legroom.plan import PlanReport, plan
from legroom.report import show, write_html

__all__ = [
    "Fitted",
    "LegroomError",
    "PlanReport",
    "Profile",
    "RunReport",
    "Verification",
    "__version__",
    "fit",
    "keep_freed_memory",
    "offload",
    "plan",
    "profile",
    "return_freed_memory",
    "show",
    "swap",
    "verify",
    "write_html",
]
