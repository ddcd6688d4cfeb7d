"""Carries ways out without a graph: on the tensors that autograd saves, as it saves them.

In goes a stretch of plain eager code, in a `with`; its saved tensors then live elsewhere.
"""

from legroom.engine.hooks._offload import Offloading, offload

__all__ = ["Offloading", "offload"]
