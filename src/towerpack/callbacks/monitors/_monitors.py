"""List of the monitors of a run, with the history of numbers."""

from __future__ import annotations

import contextlib
import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack._core.naming import did_you_mean
from towerpack._core.pictures import as_picture
from towerpack._display.notebook import html_table
from towerpack.callbacks.monitors._base import Mode, Monitor, Scalar
from towerpack.callbacks.monitors._retry import RetryingMonitor


class Monitors(Monitor):
    """A list of monitors that receive the same values, with a history of numbers.

    The history takes 16 bytes for each value. A second value for the same name and step
    replaces the first. After a resume, the history is that of the first monitor that stores one.

    Numbers may be of Python, NumPy or TensorFlow. Images are [height, width] or [height, width,
    channels], uint8, or floats from 0 to 1. Larger floats are divided by the maximum. If some are
    negative, 0 becomes gray and the largest absolute value black or white. Histograms take arrays
    of any shape. The default of `step` is that of `set_step`. `ConfigError` is raised for other
    values.

    Args:
        monitors: Receivers of the values.
        history_length: Number of newest values of each name in the history.
        clock: Returns the current time in seconds.

    Attributes:
        directions: `'min'` or `'max'` by name, for numbers of which a callback has declared before
            training whether smaller or larger is better.

    Raises:
        ConfigError: An item is not a monitor, or `history_length` is not positive.
    """

    def __init__(
        self,
        monitors: Iterable[Monitor] = (),
        *,
        history_length: int = 100_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        items: list[Any] = list(monitors)
        for item in items:
            if not isinstance(item, Monitor):
                raise ConfigError(
                    f"A monitor must be an instance of Monitor, got {item!r}.",
                    fix="call the class: ConsoleMonitor()" if isinstance(item, type) else None,
                )
        if history_length < 1:
            raise ConfigError(f"history_length must be at least 1, got {history_length}.")
        self._monitors = [RetryingMonitor(monitor, clock) for monitor in items]
        self._length = history_length
        # Steps and values of each name, which may have twice as many as the history.
        self._history: dict[str, tuple[array[int], array[float]]] = {}
        self._step = 0
        self.directions: dict[str, Mode] = {"cost": "min"}

    def set_step(self, step: int, epoch: int) -> None:
        self._step = step
        self._each("set_step", step, epoch)

    def put_scalar(self, name: str, value: Any, step: int | None = None) -> None:
        step = self._step if step is None else step
        number = _number(name, value)
        self._remember(name, step, number)
        self._each("put_scalar", name, number, step, name=name)

    def put_image(self, name: str, image: Any, step: int | None = None) -> None:
        step = self._step if step is None else step
        picture = as_picture(f"put_image({name!r}, …)", image)
        self._each("put_image", name, picture, step, name=name)

    def put_histogram(self, name: str, values: Any, step: int | None = None) -> None:
        step = self._step if step is None else step
        flat = np.asarray(values, np.float64).ravel()
        self._each("put_histogram", name, flat, step, name=name)

    def put_settings(self, settings: Mapping[str, Any]) -> None:
        """Pass on the run's settings, except values that are not numbers or short strings."""
        plain = {
            name: value
            for name, value in settings.items()
            if isinstance(value, bool | int | float)
            or (isinstance(value, str) and len(value) < 200)
        }
        self._each("put_settings", plain)

    def put_graph(self, graph: Callable[[], bytes]) -> None:
        self._each("put_graph", graph)

    def names(self) -> list[str]:
        """Return the names of all numbers, in the order in which they were first put."""
        return list(self._history)

    def history(self, name: str, last: int | None = None) -> list[tuple[int, float]]:
        """Return steps and values of a number, oldest first.

        Args:
            name: Name of the number.
            last: Maximum number of values; the newest ones are returned. None for all.

        Raises:
            ConfigError: No number of this name has been put.
        """
        if name not in self._history:
            raise ConfigError(
                f"There is no monitored number {name!r}. {did_you_mean(name, self._history)}",
                fix="check the name, or that the callback which produces it has been triggered",
            )
        steps, values = self._history[name]
        start = max(0, len(steps) - min(self._length, self._length if last is None else last))
        return list(zip(steps[start:], values[start:], strict=True))

    def latest(self, name: str) -> float:
        """Return the last value of a number. Raise `ConfigError` if there is none.

        Args:
            name: Name of the number.
        """
        return self.history(name, last=1)[0][1]

    get_history, get_latest = history, latest  # Tensorpack's names

    def _repr_html_(self) -> str:
        """Return the newest values as a table in HTML, for notebooks."""
        rows = [
            (name, f"{steps[-1]:,}", f"{values[-1]:.6g}")
            for name, (steps, values) in self._history.items()
        ]
        return html_table(("number", "step", "value"), rows)

    def remark(self, text: str) -> bool:
        return any([monitor.call("remark", text) for monitor in self._monitors])

    def end_epoch(self) -> None:
        self._each("end_epoch")
        self.flush()

    def resume(self, step: int) -> Iterable[Scalar]:
        self._step = step
        self._history.clear()
        for monitor in self._monitors:
            stored = monitor.call("resume", step) or ()
            if not self._history:
                for scalar in stored:
                    self._remember(scalar.name, scalar.step, scalar.value)
        return ()

    def flush(self) -> None:
        for monitor in self._monitors:
            monitor.flush()

    def close(self) -> None:
        """Close every monitor, in reverse order, even if one of them raises an error."""
        with contextlib.ExitStack() as stack:
            for monitor in self._monitors:
                stack.callback(monitor.close)
        self._monitors = []

    def _each(self, method: str, *args: Any, name: str | None = None) -> None:
        for monitor in self._monitors:
            monitor.call(method, *args, name=name)

    def _remember(self, name: str, step: int, value: float) -> None:
        if name not in self._history:
            self._history[name] = array("q"), array("d")
        steps, values = self._history[name]
        if steps and steps[-1] == step:
            values[-1] = value
            return
        steps.append(step)
        values.append(value)
        if len(steps) >= 2 * self._length:
            del steps[: -self._length], values[: -self._length]


def _number(name: str, value: Any) -> float:
    if type(value) is float:
        return value
    try:
        array = np.asarray(value)
        if array.size == 1:
            return float(array.item())
        got = f"{array.dtype} {list(array.shape)}"
    except (TypeError, ValueError):
        got = f"{type(value).__name__} {value!r:.60}"
    raise ConfigError(
        f"put_scalar({name!r}, …) needs one number, got {got}.",
        fix="reduce the array, for example to its mean, or use put_histogram",
    )
