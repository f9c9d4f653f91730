"""The base class of monitors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from towerpack._core import old_hooks

_START = "__init__(self), or at(self, step, epoch)"
_NO_HOOKS = {
    "process": "put_scalar(self, name, value, step)",
    "process_image": "put_image(self, name, image, step), for one picture at a time",
    **dict.fromkeys(("process_summary", "process_event"), "put_scalar, put_image, put_histogram"),
    **dict.fromkeys(("_setup_graph", "_before_train"), _START),
    **dict.fromkeys(("_trigger_epoch", "_trigger"), "end_epoch(self)"),
    "_after_train": "close(self)",
}

Mode = Literal["min", "max"]


class Scalar(NamedTuple):
    """One number of one step."""

    name: str
    step: int
    value: float


class Monitor:
    """Receive values. Override what you need; what is not overridden does nothing.

    Values of one step come between two calls of `at`. An exception goes up and ends training; but
    an `OSError` (a server that is down, a full disk) does not: one warning is logged, and calls are
    kept and made again later, in order, from the one that failed on.

    Attributes:
        essential: Training ends without it, even at an `OSError`.
    """

    essential = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        old_hooks.adopt(cls, {"process_scalar": ("put_scalar", 2)}, _NO_HOOKS)

    def at(self, step: int, epoch: int) -> None:
        """What comes next belongs to this step and epoch."""

    def put_scalar(self, name: str, value: float, step: int) -> None:
        """A number; may be nan or infinite."""

    def put_image(self, name: str, image: np.ndarray, step: int) -> None:
        """A picture: uint8, height × width × 1, 3 or 4 channels."""

    def put_histogram(self, name: str, values: np.ndarray, step: int) -> None:
        """The values (float64, flat) whose distribution is of interest."""

    def put_settings(self, settings: Mapping[str, bool | int | float | str]) -> None:
        """Hyper-parameters and other settings of the run, once at each start."""

    def put_graph(self, graph: Callable[[], bytes]) -> None:
        """The model's training graph, once at each start: a function that serialises it."""

    def remark(self, text: str) -> bool:
        """A few words on this epoch; True if they will be shown with its values."""
        return False

    def end_epoch(self) -> None:
        """An epoch's values are complete."""

    def resume(self, step: int) -> Iterable[Scalar]:
        """Training goes on from the end of `step`: what was received for later steps is void.

        Returns:
            What is remembered of earlier starts, up to `step`, oldest first.
        """
        return ()

    def flush(self) -> None:
        """Bring everything received to where it survives a crash."""

    def close(self) -> None:
        """Nothing more will come."""

    def __repr__(self) -> str:
        return type(self).__name__
