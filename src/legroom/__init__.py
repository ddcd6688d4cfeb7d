"""legroom makes PyTorch training fit.

This release shows where a training step's memory and time go: `legroom.profile(step)` from Python,
`legroom profile train.py` from the command line.
"""

from legroom._version import __version__
from legroom.errors import LegroomError
from legroom.meter import Profile, profile
from legroom.report import show, write_html

__all__ = ["LegroomError", "Profile", "__version__", "profile", "show", "write_html"]
