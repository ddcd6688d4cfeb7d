"""Runs captured graphs as a plan says: forward keeps, backward gives back."""

from legroom.engine.graph._executors import Executor, choose_executor
from legroom.engine.graph._gradients import guard, is_distributed
from legroom.engine.graph._planned_call import PlannedCall

__all__ = ["Executor", "PlannedCall", "choose_executor", "guard", "is_distributed"]
