"""A step that fails inside TensorFlow: which one, why, and with which batch."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import StepError
from towerpack._core.npz import save_arrays

# A flow that can only be read from its beginning may take long to come to a batch again.
_READ_S = 60.0
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


def step_error(
    error: tf.errors.OpError,
    step: int,
    run_dir: Path,
    read_again: Callable[[], Sequence[np.ndarray] | None],
    name: Callable[[Sequence[np.ndarray]], Mapping[str, np.ndarray]],
) -> StepError:
    """What to raise in place of TensorFlow's error, whose text is mostly its own call stack.

    Args:
        error: TensorFlow's.
        step: The number of the step that failed.
        run_dir: The step's inputs are kept there.
        read_again: Gives the inputs once more, or None; may take long or fail.
        name: Puts their names to them.
    """
    stack, _, essence = (error.message or str(error)).rstrip().rpartition("\n\n")
    frames = list(_FRAME.finditer(stack))
    return StepError(
        f"Step {step} failed inside TensorFlow: {type(error).__name__}.",
        got=re.sub(r"\s*\[\[.*", "", essence, flags=re.DOTALL).strip() or essence,
        expected="a step that can be computed; it was not applied",
        fix=_kept(run_dir / f"failed-step-{step:08d}.npz", read_again, name),
        details=""
        if not frames
        else "Made by {function} ({file}, line {line}).".format(**frames[-1].groupdict()),
    )


def _kept(
    path: Path,
    read_again: Callable[[], Sequence[np.ndarray] | None],
    name: Callable[[Sequence[np.ndarray]], Mapping[str, np.ndarray]],
) -> str:
    found: list[Any] = []

    def read() -> None:
        try:
            found.append(read_again())
        except BaseException as error:  # noqa: BLE001 - told beside the error that it belongs to
            found.append(error)

    thread = threading.Thread(target=read, name="towerpack-read-again", daemon=True)
    thread.start()
    thread.join(_READ_S)
    batch = found[0] if found else TimeoutError(f"not there after {_READ_S:.0f} s")
    if batch is None:
        return "look at the data of this step (they were made inside TensorFlow and are not kept)"
    try:
        if isinstance(batch, BaseException):
            raise batch
        save_arrays(path, name(batch))
    except Exception as error:  # noqa: BLE001 - told beside the error that it belongs to
        return f"look at the data of this step (not kept: {type(error).__name__}: {error})"
    return f"look at its batch, in {path}"
