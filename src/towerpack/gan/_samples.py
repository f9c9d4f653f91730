import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from towerpack._core.errors import CallbackError
from towerpack._core.randomness import derive_seed
from towerpack.callbacks import Callback
from towerpack.dataflow.images import image_grid


class SampleGrid(Callback):
    """Callback that draws a grid of generated images: `RUN_DIR/samples/epoch-0001.png`.

        SampleGrid("gen/fake", RandomZData([64, 100]))
        SampleGrid(["image_a", "gen/fake_b"], pairs)  # side by side

    The grid is also sent to the monitors. All grids of a run use the first datapoint of the flow,
    which depends only on the run's seed.

    Args:
        outputs: Names of outputs [batch, height, width(, 1 or 3)]. The images of several outputs
            are drawn side by side.
        flow: Dataflow of batches of the inputs that the outputs need, in order or as dicts by name.
        columns: Datapoints per row; None for a square grid.
        value_range: Values that are drawn as black and as white.
        name: Name of the folder and of the reported image.
        ema: Whether to use the averaged weights of `WeightEMA`.
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
        self.outputs = [outputs] if isinstance(outputs, str) else list(outputs)
        self.flow, self.columns, self.value_range = flow, columns, value_range
        self.name, self.ema = name, ema

    def before_train(self) -> None:
        self._function, names = self.trainer.predict_function(self.outputs, ema=self.ema)
        datapoint = next(seeded(self.flow, self.trainer.seed, self.name), None)
        self._inputs = fed(self, datapoint, names)

    def trigger(self) -> None:
        parts = [self._as_uint8(np.asarray(part)) for part in self._function(*self._inputs)]
        pictures = [picture for row in zip(*parts, strict=True) for picture in row]
        columns = self.columns or math.ceil(math.sqrt(len(parts[0])))
        folder = self.trainer.run_dir / self.name
        folder.mkdir(exist_ok=True)
        grid = image_grid(
            pictures,
            folder / f"epoch-{self.trainer.epoch:04d}.png",
            rows=-(-len(parts[0]) // columns),
            cols=columns * len(parts),
            cell=max(64, *(side for part in parts for side in part.shape[1:3])),
        )
        self.trainer.monitors.put_image(self.name, grid)

    def _as_uint8(self, part: np.ndarray) -> np.ndarray:
        if part.ndim not in (3, 4) or part.shape[3:] not in ((), (1,), (3,)):
            raise CallbackError(
                f"Each output of {self!r} must have the shape [batch, height, width] or [batch, "
                f"height, width, 1 or 3], got {part.shape}.",
                fix="pass names of outputs that are batches of images",
            )
        low, high = self.value_range
        shares = (part.astype(np.float32) - low) / (high - low)
        return np.rint(255 * np.clip(shares, 0.0, 1.0)).astype(np.uint8)


def seeded(flow: Iterable[Any], seed: int, name: str) -> Any:
    """Iterate once over a dataflow, seeded with the run's seed and a name."""
    iterate = getattr(flow, "iterate", None)
    return iter(flow) if iterate is None else iterate(seed=derive_seed(seed, name), epoch=0)


def fed(callback: Callback, datapoint: Any, names: Sequence[str]) -> list[Any]:
    """Convert a datapoint to arrays for the inputs `names`, in their order.

    Raises:
        CallbackError: The datapoint is missing, or its components or dtypes do not match.
    """
    if isinstance(datapoint, Mapping) and set(names) <= set(datapoint):
        datapoint = [datapoint[name] for name in names]
    parts = datapoint if isinstance(datapoint, list | tuple) else [datapoint]
    arrays = [] if datapoint is None else [np.asarray(part) for part in parts]
    specs = {spec.name: spec.dtype.as_numpy_dtype for spec in callback.trainer.tower.specs}
    pairs = list(zip(arrays, (specs[name] for name in names), strict=False))
    castable = all(np.can_cast(array.dtype, dtype, "same_kind") for array, dtype in pairs)
    if len(arrays) != len(names) or not castable:
        raise CallbackError(
            f"The dataflow of {callback!r} must provide batches of {', '.join(names) or 'nothing'} "
            "(in this order or as a dict), "
            f"got {', '.join(str(a.dtype) for a in arrays) or 'nothing'}."
        )
    return [array.astype(dtype, copy=False) for array, dtype in pairs]
