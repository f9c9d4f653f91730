"""Progress display: a bar in a terminal, lines in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.text import Text

from towerpack._core.logs import get_logger
from towerpack._display.meter import Meter, clock_text, speed_text
from towerpack._display.terminal import Screen, Style, screen
from towerpack.callbacks._base import Callback
from towerpack.callbacks._host import TrainerHost

_log = get_logger(__name__)

_REDRAW_S = 0.2


class ProgressBar(Callback):
    """Progress bar with epoch, steps, remaining time of epoch and run, speed, and chosen outputs.

    Without a terminal, each epoch has one line in the log. If a monitor such as `ConsoleMonitor`
    logs the epoch's values, the remaining time is added to its line.

    Args:
        names: Name or names of scalar outputs of the training tower to show, such as `'cost'`.
        clock: Returns the current time in seconds.
    """

    def __init__(
        self, names: str | Sequence[str] = (), *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._names = [names] if isinstance(names, str) else list(names)
        self._clock = clock
        self._meter = Meter()
        self._outputs: Mapping[str, Any] = {}
        self._screen: Screen | None = None
        self._shown = False
        self._next_draw = 0.0
        self._start = (0.0, 0)  # time and step

    def setup(self, trainer: TrainerHost) -> None:
        self.fetch(*self._names)

    def before_train(self) -> None:
        self._screen = screen()
        self._begin()

    def before_epoch(self) -> None:
        self._begin()
        self._show()

    def after_step(self, outputs: Mapping[str, Any]) -> None:
        self._outputs = outputs

    def after_call(self) -> None:
        now = self._clock()
        if now < self._next_draw:
            return
        self._next_draw = now + _REDRAW_S
        self._meter.sample(now, self.trainer.global_step)
        if self._shown and self._screen is not None:
            self._screen.draw()
        else:
            self._show()

    def after_epoch(self) -> None:
        now = self._clock()
        self._meter.end(now, self.trainer.global_step)
        self._hide()
        if self._screen is None and not self.trainer.monitors.remark(", ".join(self._outlook())):
            _log.info("%s", self._report(now))

    def after_train(self) -> None:
        self._hide()

    def acts_in(self, hook: str) -> bool:
        return super().acts_in(hook) and (hook != "after_step" or bool(self._names))

    def _begin(self) -> None:
        self._start = (self._clock(), self.trainer.global_step)
        self._meter.restart(*self._start)

    def _show(self) -> None:
        if self._screen is not None and not self._shown:
            self._shown = True
            self._screen.show(self._row)

    def _hide(self) -> None:
        if self._screen is not None and self._shown:
            self._shown = False
            self._screen.hide(self._row)

    def _row(self, style: Style, width: int) -> Text:
        trainer = self.trainer
        total, done = trainer.steps_per_epoch, trainer.local_step
        parts = []
        in_epoch, in_run = self._meter.left(max(0, total - done)), self._run_left()
        if in_epoch is not None and in_run is not None:
            parts = [f"{clock_text(in_epoch)} left", f"{clock_text(in_run)} to the end"]
        parts += [speed_text(self._meter.rate), *self._numbers()]
        head = f"Epoch {trainer.epoch:,}/{trainer.max_epoch:,}"
        return style.line(width, head=head, done=done, total=total, parts=parts)

    def _report(self, now: float) -> str:
        start, step = self._start
        done = f"{self.global_step - step:,} steps in {clock_text(now - start)}"
        epoch = f"Epoch {self.epoch_num:,}/{self.trainer.max_epoch:,}: {done}"
        return ", ".join([epoch, speed_text(self._meter.rate), *self._outlook()])

    def _outlook(self) -> list[str]:
        left = self._run_left()
        return [*([] if left is None else [f"{clock_text(left)} left"]), *self._numbers()]

    def _run_left(self) -> float | None:
        trainer = self.trainer
        epochs = max(0, trainer.max_epoch - trainer.epoch)
        steps = max(0, trainer.steps_per_epoch - trainer.local_step)
        return self._meter.left(steps + epochs * trainer.steps_per_epoch, epochs + 1)

    def _numbers(self) -> list[str]:
        texts = []
        for name in self._names:
            if name in self._outputs:
                value = np.asarray(self._outputs[name])
                text = f"{float(value):.4g}" if value.ndim == 0 else f"{list(value.shape)}"
                texts.append(f"{name} {text}")
        return texts
