"""A callback that passes through every hook: what recording callbacks of the tests share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from towerpack.callbacks import Callback


class EveryHook(Callback):
    """Calls `on(hook)` in each hook but `setup`; in the epoch's trigger as 'trigger'."""

    def on(self, hook: str) -> None:
        raise NotImplementedError

    def before_train(self) -> None:
        self.on("before_train")

    def before_epoch(self) -> None:
        self.on("before_epoch")

    def before_step(self) -> None:
        self.on("before_step")

    def after_step(self, outputs: Mapping[str, Any]) -> None:
        self.on("after_step")

    def trigger_step(self) -> None:
        self.on("trigger_step")

    def after_call(self) -> None:
        self.on("after_call")

    def after_epoch(self) -> None:
        self.on("after_epoch")

    def trigger(self) -> None:
        self.on("trigger")

    def after_train(self) -> None:
        self.on("after_train")
