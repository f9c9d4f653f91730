"""Callbacks that process outputs of the training steps: functions, files, images, logs, means."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack._core.files import replace_file
from towerpack._core.logs import get_logger
from towerpack._core.npz import save_arrays
from towerpack._core.pictures import as_picture, png
from towerpack.callbacks._base import Callback
from towerpack.callbacks._host import TrainerHost

_log = get_logger(__name__)


class _OfSteps(Callback):
    def __init__(self, names: str | Sequence[str], *, every_k_steps: int = 1) -> None:
        self._names = [names] if isinstance(names, str) else list(names)
        self._every = every_k_steps
        if not self._names or every_k_steps < 1:
            raise ConfigError(
                f"{type(self).__name__} needs names of outputs and every_k_steps of at least 1, "
                f"got {names!r} and every_k_steps={every_k_steps}."
            )

    @abstractmethod
    def _process(self, outputs: Mapping[str, Any]) -> None: ...

    def setup(self, trainer: TrainerHost) -> None:
        self.fetch(*self._names)

    def after_step(self, outputs: Mapping[str, Any]) -> None:
        if self.global_step % self._every == 0:
            self._process(outputs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._names)})"


class ProcessOutputs(_OfSteps):
    """Callback that passes chosen outputs of each training step to a function.

    Args:
        names: Name or names of outputs of the training tower.
        func: Takes the values of one step, NumPy arrays or numbers, in the order of the names.
        every_k_steps: Call the function only at steps whose number is a multiple of this number.
    """

    def __init__(
        self, names: str | Sequence[str], func: Callable[..., Any], *, every_k_steps: int = 1
    ) -> None:
        super().__init__(names, every_k_steps=every_k_steps)
        self._func = func

    def _process(self, outputs: Mapping[str, Any]) -> None:
        self._func(*(outputs[name] for name in self._names))


class DumpTensors(_OfSteps):
    """Callback that writes outputs of steps to `dump/*.npz`. See `ProcessOutputs` for arguments."""

    def _process(self, outputs: Mapping[str, Any]) -> None:
        path = self.trainer.run_dir / "dump" / f"step-{self.global_step:08d}.npz"
        save_arrays(path, {name: outputs[name] for name in self._names})


class TensorPrinter(_OfSteps):
    """Callback that logs outputs of steps, shortened. See `ProcessOutputs` for the arguments."""

    def _process(self, outputs: Mapping[str, Any]) -> None:
        for name in self._names:
            value = np.asarray(outputs[name])
            text = np.array2string(value, precision=5, threshold=20, edgeitems=3)
            _log.info("Step %d: %s %s = %s", self.global_step, name, list(value.shape), text)


class DumpTensorAsImage(_OfSteps):
    """Callback that writes an output of the last step as image files, and sends them to monitors.

    Files are `images/<name>-00000012-0.png` in the run directory.

    Args:
        name: Name of an output of the training tower.
        map_func: Converts the value to images [h, w], [h, w, c] or [n, h, w, c] with 1, 3 or 4
            channels, uint8 or floats from 0 to 1. None if the output has this form.
        most: Maximum number of images.

    Raises:
        ConfigError: `map_func` is a string, such as the prefix that Tensorpack takes there.
    """

    def __init__(
        self, name: str, map_func: Callable[[Any], Any] | None = None, *, most: int = 4
    ) -> None:
        if isinstance(map_func, str):  # the second argument of Tensorpack's
            raise ConfigError(
                f"DumpTensorAsImage: map_func must be a function, got {map_func!r}.",
                fix="pass a function or nothing. Files are named after the output, the first "
                "argument",
            )
        super().__init__(name)
        self._name, self._map, self._most = name, map_func, most
        self._value: Any = None

    def _process(self, outputs: Mapping[str, Any]) -> None:
        self._value = outputs[self._name]

    def trigger(self) -> None:
        if self._value is None:  # no step since a resume
            return
        value = np.asarray(self._value if self._map is None else self._map(self._value))
        label = self._name.replace("/", "_")
        for i, array in enumerate(value[: self._most] if value.ndim == 4 else [value]):
            image = as_picture(repr(self), array)
            path = self.trainer.run_dir / "images" / f"{label}-{self.global_step:08d}-{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, png(image))
            self.trainer.monitors.put_image(f"{self._name}/{i}", image, self.global_step)


class SimpleMovingAverage(_OfSteps):
    """Means of scalar outputs over the last steps, monitored as `<name>/SMA`.

    Exponential means, `towerpack.nn.summary.moving_average`, are faster.

    Args:
        names: Name or names of scalar outputs of the training tower.
        window_size: Number of steps.

    Raises:
        ConfigError: `window_size` is not positive, or an output is not a scalar.
    """

    def __init__(self, names: str | Sequence[str], window_size: int) -> None:
        super().__init__(names)
        if window_size < 1:
            raise ConfigError(f"{self!r}: window_size must be at least 1, got {window_size}.")
        self._windows = {name: deque[float](maxlen=window_size) for name in self._names}

    def produces(self) -> Sequence[str]:
        return [f"{name}/SMA" for name in self._names]

    def _process(self, outputs: Mapping[str, Any]) -> None:
        for name, window in self._windows.items():
            if np.ndim(outputs[name]):
                raise ConfigError(f"{self!r}: the output '{name}' must be a scalar.")
            window.append(float(outputs[name]))

    def trigger(self) -> None:
        for name, window in self._windows.items():
            if window:
                mean = float(np.mean(window))
                self.trainer.monitors.put_scalar(f"{name}/SMA", mean, self.global_step)

    def state(self) -> dict[str, Any]:
        return {name: list(window) for name, window in self._windows.items()}

    def restore(self, state: Any) -> None:
        for name, window in self._windows.items():
            window.extend(state.get(name, []))
