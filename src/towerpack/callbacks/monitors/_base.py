"""Base class of monitors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from towerpack._core import old_hooks

_START = "__init__(self), or set_step(self, step, epoch)"
_NO_HOOKS = {
    "process": "put_scalar(self, name, value, step)",
    "process_image": "put_image(self, name, image, step), for one picture at a time",
    **dict.fromkeys(("process_summary", "process_event"), "put_scalar, put_image, put_histogram"),
    **dict.fromkeys(("_setup_graph", "_before_train"), _START),
    **dict.fromkeys(("_trigger_epoch", "_trigger"), "end_epoch(self)"),
    "_after_train": "close(self)",
}
_OLD_HOOKS = {"process_scalar": ("put_scalar", 2), "at": ("set_step", 2)}

Mode = Literal["min", "max"]


class Scalar(NamedTuple):
    """A monitored number with its name and global step."""

    name: str
    step: int
    value: float


class Monitor:
    """Base class of monitors, which receive values during training. Methods do nothing by default.

    If a method raises `OSError` (a server that is down, a full disk), training continues. A warning
    is logged, and this call and later calls are repeated in order. Other exceptions end training.

    Attributes:
        essential: Whether an `OSError` also ends training.
    """

    essential = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        old_hooks.adopt(cls, _OLD_HOOKS, _NO_HOOKS)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "at":  # the old name
                return self.set_step
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def set_step(self, step: int, epoch: int) -> None:
        """Receive the global step and the epoch of the values that follow.

        Args:
            step, epoch: Global step, and number of the epoch.
        """

    def put_scalar(self, name: str, value: float, step: int) -> None:
        """Receive a number.

        Args:
            name, step: Name of the number, and global step.
            value: The number, which may be NaN or infinite.
        """

    def put_image(self, name: str, image: np.ndarray, step: int) -> None:
        """Receive an image.

        Args:
            name, step: Name of the image, and global step.
            image: uint8 [height, width, channels] with 1, 3 or 4 channels.
        """

    def put_histogram(self, name: str, values: np.ndarray, step: int) -> None:
        """Receive values whose distribution is to be shown.

        Args:
            name, step: Name of the distribution, and global step.
            values: float64 [n].
        """

    def put_settings(self, settings: Mapping[str, bool | int | float | str]) -> None:
        """Receive the run's settings, once at each start.

        Args:
            settings: Hyper-parameters and other settings by name.
        """

    def put_graph(self, graph: Callable[[], bytes]) -> None:
        """Receive the model's training graph, once at each start.

        Args:
            graph: Returns TensorFlow's serialized `GraphDef`.
        """

    def remark(self, text: str) -> bool:
        """Receive a remark on the current epoch. Return whether the monitor will show it.

        Args:
            text: A few words.
        """
        return False

    def end_epoch(self) -> None:
        """Process the values of an epoch, which are complete."""

    def resume(self, step: int) -> Iterable[Scalar]:
        """Discard values of later steps, because a run is resumed.

        Args:
            step: Number of steps done.

        Returns:
            Scalars of earlier starts up to `step`, oldest first, if the monitor stores them.
        """
        return ()

    def flush(self) -> None:
        """Write everything received, so that it survives a crash."""

    def close(self) -> None:
        """Release resources at the end of the run."""

    def __repr__(self) -> str:
        return type(self).__name__
