"""legroom makes PyTorch training fit.

It shows where a training step's memory and time go (`legroom.profile(step)`), and says before you
train what would fit and what it would cost (`legroom.plan(step)`); `legroom profile train.py` and
`legroom plan train.py` do the same from the command line.
"""

from legroom._version import __version__
from legroom.errors import LegroomError
from legroom.meter import Profile, profile
from legroom.plan import PlanReport, plan
from legroom.report import show, write_html

__all__ = [
    "LegroomError",
    "PlanReport",
    "Profile",
    "__version__",
    "plan",
    "profile",
    "show",
    "write_html",
]
