"""Stands in for Keras' callbacks: a list of them, and one that keeps what each epoch reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Callback:
    """Is told of the start and the end of training and of its epochs."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.model: Any = None

    def set_model(self, model: Any) -> None:
        """Keep the model."""
        self.model = model

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""


class EarlyStopping(Callback):
    """Never stops."""


class ModelCheckpoint(Callback):
    """Saves nothing."""


class History(Callback):
    """Keeps what each epoch reports."""

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Start anew."""
        self.epoch: list[int] = []
        self.history: dict[str, list[Any]] = {}

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Append each value."""
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)


class CallbackList(Callback):
    """Tells each of several."""

    def __init__(self, callbacks: list[Callback]) -> None:
        super().__init__()
        self.callbacks = callbacks

    def set_model(self, model: Any) -> None:
        """Give the model to each."""
        super().set_model(model)
        for each in self.callbacks:
            each.set_model(model)

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Tell each."""
        for each in self.callbacks:
            each.on_train_begin(logs)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Tell each."""
        for each in self.callbacks:
            each.on_train_end(logs)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Tell each."""
        for each in self.callbacks:
            each.on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Tell each."""
        for each in self.callbacks:
            each.on_epoch_end(epoch, logs)
