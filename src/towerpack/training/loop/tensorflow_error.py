"""Errors of steps that fail inside TensorFlow."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import StepError
from towerpack._core.npz import save_arrays

# A flow that can only be read from its beginning may take long to reach a batch again.
_READ_S = 60.0
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


def step_error(
    error: tf.errors.OpError,
    what: str,
    path: Path,
    read_again: Callable[[], Mapping[str, np.ndarray] | None],
    seconds: float = _READ_S,
) -> StepError:
    """Convert an error of TensorFlow to a short `StepError`, without TensorFlow's call stack.

    `what` is the subject of the message, such as 'Step 12'. `read_again` returns the inputs by
    name, or None. It may take at most `seconds`, and the inputs are saved at `path`.
    """
    message = re.sub(r"\s*\[\[\{\{.*", "", error.message or str(error), flags=re.DOTALL)
    stack, _, essence = message.rstrip().rpartition("\n\n")
    frames = list(_FRAME.finditer(stack))
    origin = "Created by {function} ({file}, line {line})."
    return StepError(
        f"{what} failed inside TensorFlow: {type(error).__name__}.",
        got=essence.strip(),
        expected="a step without errors (the failed step was not applied)",
        fix=_save_batch(path, read_again, seconds),
        details=origin.format(**frames[-1].groupdict()) if frames else "",
    )


def _save_batch(
    path: Path, read_again: Callable[[], Mapping[str, np.ndarray] | None], seconds: float
) -> str:
    """Save the inputs of a failed step. Return a fix that names the file, or why none was saved."""
    outcomes: list[Any] = []

    def read() -> None:
        try:
            outcomes.append(read_again())
        except BaseException as error:  # noqa: BLE001 - part of the reported error
            outcomes.append(error)

    thread = threading.Thread(target=read, name="towerpack-read-again", daemon=True)
    thread.start()
    thread.join(seconds)
    batch = outcomes[0] if outcomes else TimeoutError(f"not available after {seconds:.0f} s")
    if batch is None:
        return "check the data of this step (not saved, because TensorFlow produced them)"
    try:
        if isinstance(batch, BaseException):
            raise batch
        save_arrays(path, batch)
    except Exception as error:  # noqa: BLE001 - part of the reported error
        return f"check the data of this step (not saved: {type(error).__name__}: {error})"
    return f"check the batch of this step, saved in {path}"
