"""A run's monitors: hands every value to each of them, and keeps the history of numbers."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack._core.naming import did_you_mean
from towerpack._core.pictures import as_picture
from towerpack.callbacks.monitors._base import Mode, Monitor, Scalar
from towerpack.callbacks.monitors._retry import RetryingMonitor


class Monitors:
    """Hand every value to each monitor, in order, and keep the history of numbers.

    The history holds the newest `history_length` values of each name, about 100 bytes each; older
    ones are still in `stats.jsonl`. A second value for the same name and step replaces the first.

    Args:
        monitors: Who receives. The history after a resume comes from the first that remembers.
        history_length: How many values of each name are kept in memory.
        clock: Seconds that go forward.

    Attributes:
        directions: `'min'` or `'max'` for each number whose producer declared, before training,
            whether a smaller or a larger one is better.

    Raises:
        ConfigError: Something in the list is not a monitor.
    """

    def __init__(
        self,
        monitors: Iterable[Monitor] = (),
        *,
        history_length: int = 100_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        monitors = list(monitors)
        for given in cast("list[object]", monitors):
            if not isinstance(given, Monitor):
                raise ConfigError(
                    f"{given!r} is not a monitor.",
                    expected="instances of Monitor",
                    fix="call the class: ConsoleMonitor()" if isinstance(given, type) else None,
                )
        if history_length < 1:
            raise ConfigError(f"history_length={history_length}.", expected="at least 1")
        self._monitors = [RetryingMonitor(monitor, clock) for monitor in monitors]
        self._length = history_length
        self._history: dict[str, deque[tuple[int, float]]] = {}
        self._step = 0
        self.directions: dict[str, Mode] = {"cost": "min"}

    def at(self, step: int, epoch: int) -> None:
        """Set the step and the epoch of what is put next."""
        self._step = step
        self._each("at", step, epoch)

    def put_scalar(self, name: str, value: Any, step: int | None = None) -> None:
        """Put a number: a Python, NumPy or TensorFlow one. `step` is that of `at` if not given.

        Raises:
            ConfigError: It is not one number.
        """
        step = self._step if step is None else step
        number = _number(name, value)
        self._remember(Scalar(name, step, number))
        self._each("put_scalar", name, number, step, name=name)

    def put_image(self, name: str, image: Any, step: int | None = None) -> None:
        """Put a picture: height × width (× 1, 3 or 4), uint8, or floats from 0 to 1.

        Floats beyond 1 are divided by the largest. Where some are negative, 0 becomes a mid-grey
        (127), and the largest or smallest value white or black.

        Raises:
            ConfigError: It is not a picture.
        """
        step = self._step if step is None else step
        picture = as_picture(f"put_image({name!r}, …)", image)
        self._each("put_image", name, picture, step, name=name)

    def put_histogram(self, name: str, values: Any, step: int | None = None) -> None:
        """Put values, of any shape, whose distribution is of interest."""
        step = self._step if step is None else step
        flat = np.asarray(values, np.float64).ravel()
        self._each("put_histogram", name, flat, step, name=name)

    def put_settings(self, settings: Mapping[str, Any]) -> None:
        """Put the run's settings; what is no number or short text is left out."""
        plain = {
            name: value
            for name, value in settings.items()
            if isinstance(value, bool | int | float)
            or (isinstance(value, str) and len(value) < 200)
        }
        self._each("put_settings", plain)

    def put_graph(self, graph: Callable[[], bytes]) -> None:
        """Put the training graph: a function that gives TensorFlow's serialised `GraphDef`."""
        self._each("put_graph", graph)

    def names(self) -> list[str]:
        """Names of all numbers, in the order in which they first came."""
        return list(self._history)

    def history(self, name: str) -> list[tuple[int, float]]:
        """Steps and values of a number, oldest first.

        Raises:
            ConfigError: There is no number of this name; names what comes close.
        """
        return list(self._values(name))

    def latest(self, name: str) -> float:
        """The last value of a number.

        Raises:
            ConfigError: There is no number of this name; names what comes close.
        """
        return self._values(name)[-1][1]

    def remark(self, text: str) -> bool:
        """Have a few words shown with the epoch's values; False if no monitor does that."""
        return any([monitor.call("remark", text) for monitor in self._monitors])

    get_history, get_latest = history, latest  # the predecessor's names

    def end_epoch(self) -> None:
        """An epoch's values are complete: show them, and flush."""
        self._each("end_epoch")
        self.flush()

    def resume(self, step: int) -> None:
        """Go on from the end of `step`: later values are void, earlier ones are remembered."""
        self._step = step
        self._history.clear()
        for monitor in self._monitors:
            remembered = monitor.call("resume", step) or ()
            if not self._history:
                for scalar in remembered:
                    self._remember(scalar)

    def flush(self) -> None:
        """Flush every monitor; do it before a checkpoint, which relies on what came before it."""
        for monitor in self._monitors:
            monitor.flush()

    def close(self) -> None:
        """Close every monitor, the last first, even if one fails.

        Raises:
            CallbackError: One failed.
        """
        with contextlib.ExitStack() as stack:
            for monitor in self._monitors:
                stack.callback(monitor.close)
        self._monitors = []

    def _each(self, method: str, *args: Any, name: str | None = None) -> None:
        for monitor in self._monitors:
            monitor.call(method, *args, name=name)

    def _remember(self, scalar: Scalar) -> None:
        values = self._history.get(scalar.name)
        if values is None:
            values = self._history[scalar.name] = deque(maxlen=self._length)
        if values and values[-1][0] == scalar.step:
            values.pop()
        values.append((scalar.step, scalar.value))

    def _values(self, name: str) -> deque[tuple[int, float]]:
        if name not in self._history:
            raise ConfigError(
                f"No monitored number is called {name!r}. {did_you_mean(name, self._history)}",
                fix="check the name, or that the callback which produces it has been triggered",
            )
        return self._history[name]


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
        f"put_scalar({name!r}, …) takes one number.",
        got=got,
        expected="a number, or an array with one element",
        fix="reduce it, for example by its mean, or use put_histogram",
    )
