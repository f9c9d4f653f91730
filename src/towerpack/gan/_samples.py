"""Pictures of what a generator makes, once an epoch, of the same noise each time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import CallbackError, ConfigError
from towerpack._core.files import replace_file
from towerpack._core.randomness import derive_seed
from towerpack.callbacks import Callback


class SampleGrid(Callback):
    """Draws a grid of generated pictures: `RUN_DIR/samples/epoch-0001.png`, and for the monitors.

        SampleGrid("gen/fake", RandomZData([64, 100]))
        SampleGrid(["image_a", "gen/fake_b"], pairs)  # side by side

    The first datapoint of the flow is what is fed, chosen by the run's seed alone: all pictures of
    a run, continued or not, are of the same noise.

    Args:
        outputs: Names of outputs [batch, height, width(, 1 or 3)]; of several, all are shown side
            by side for each datapoint, and must be of one size.
        flow: Its datapoints have batches of the inputs on which the outputs depend, in order, or
            dicts by their names.
        columns: Datapoints in a row; None for about as many as rows.
        value_range: What is black and what is white.
        name: Of the folder and of the monitored picture.
        ema: Take the averages of `WeightEMA` for the weights.

    Raises:
        ConfigError: A range without extent, or fewer than one column.
    """

    def __init__(
        self,
        outputs: str | Sequence[str],
        flow: Iterable[Any],
        *,
        columns: int | None = None,
        value_range: tuple[float, float] = (-1.0, 1.0),
        name: str = "samples",
        ema: bool = False,
    ) -> None:
        low, high = value_range
        if not low < high or (columns is not None and columns < 1):
            raise ConfigError(
                f"SampleGrid({columns=}, {value_range=}).",
                expected="(black, white) with black < white, and at least one column",
            )
        self.outputs = [outputs] if isinstance(outputs, str) else list(outputs)
        self.flow = flow
        self.columns, self.value_range = columns, value_range
        self.name, self.ema = name, ema

    def before_train(self) -> None:
        """Cut the tower to the outputs, and draw the noise."""
        self._function, names = self.trainer.predict_function(self.outputs, ema=self.ema)
        datapoint = next(seeded(self.flow, self.trainer.seed, self.name), None)
        self._inputs = fed(self, datapoint, names)

    def trigger(self) -> None:
        """Draw."""
        low, high = self.value_range
        parts = [np.asarray(part, np.float32) for part in self._function(*self._inputs)]
        if len({part.shape for part in parts}) > 1 or parts[0].ndim not in (3, 4):
            raise CallbackError(
                f"{self!r} cannot draw outputs of these shapes.",
                got=", ".join(f"{n} {p.shape}" for n, p in zip(self.outputs, parts, strict=True)),
                expected="[batch, height, width] or [batch, height, width, 1 or 3], all the same",
            )
        scaled = [np.clip((part - low) / (high - low), 0.0, 1.0) for part in parts]
        grid = image_grid(np.concatenate(scaled, axis=2), self.columns)
        folder = self.trainer.run_dir / self.name
        folder.mkdir(exist_ok=True)
        path = folder / f"epoch-{self.trainer.epoch:04d}.png"
        replace_file(path, tf.io.encode_png(grid).numpy())
        self.trainer.monitors.put_image(self.name, grid)

    def __repr__(self) -> str:
        return f"SampleGrid({', '.join(map(repr, self.outputs))})"


def image_grid(images: np.ndarray, columns: int | None = None) -> np.ndarray:
    """Put pictures side by side, row by row, with lines of one pixel in between.

    Args:
        images: [n, height, width] or [n, height, width, 1 or 3], from 0 to 1.
        columns: How many in a row; None for about as many as rows.

    Returns:
        uint8 [height, width, channels].
    """
    images = images.reshape(*images.shape[:3], -1)
    count, height, width, channels = images.shape
    columns = math.ceil(math.sqrt(count)) if columns is None else min(columns, count)
    rows = -(-count // columns)
    grid = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1, channels), 128, np.uint8)
    for i, image in enumerate(images):
        top, left = i // columns * (height + 1), i % columns * (width + 1)
        grid[top : top + height, left : left + width] = np.rint(image * 255)
    return grid


def seeded(flow: Iterable[Any], seed: int, name: str) -> Any:
    """The first pass of a flow, as the run's seed and a name decide it."""
    iterate = getattr(flow, "iterate", None)
    return iter(flow) if iterate is None else iterate(seed=derive_seed(seed, name), epoch=0)


def fed(who: Callback, datapoint: Any, names: Sequence[str]) -> list[Any]:
    """What of a datapoint is given to a function with arguments of these names.

    Raises:
        CallbackError: There is no datapoint, or it does not have just these.
    """
    if isinstance(datapoint, Mapping) and set(names) <= set(datapoint):
        return [datapoint[name] for name in names]
    parts = [datapoint] if isinstance(datapoint, np.ndarray) else datapoint
    if not isinstance(parts, list | tuple) or len(parts) != len(names):
        got = f"{len(parts)} components" if isinstance(parts, list | tuple) else repr(parts)
        raise CallbackError(
            f"{who!r}: the flow does not give what the outputs depend on.",
            got="a flow without datapoints" if datapoint is None else got,
            expected=f"batches of {', '.join(names) or 'nothing'}, in this order or as a dict",
        )
    return list(parts)
