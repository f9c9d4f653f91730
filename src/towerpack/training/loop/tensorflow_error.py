"""A step that fails inside TensorFlow: which one, why, and with which batch."""

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

# A flow that can only be read from its beginning may take long to come to a batch again.
_READ_S = 60.0
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


def step_error(
    error: tf.errors.OpError,
    what: str,
    path: Path,
    read_again: Callable[[], Mapping[str, np.ndarray] | None],
    seconds: float = _READ_S,
) -> StepError:
    """Error in place of TensorFlow's, whose text is mostly its own call stack.

    Args:
        error: TensorFlow's.
        what: For the message, such as 'Step 12'.
        path: Where to keep the inputs.
        read_again: Gives the inputs by name, or None; may take long or fail.
        seconds: How long to wait for it.
    """
    message = re.sub(r"\s*\[\[\{\{.*", "", error.message or str(error), flags=re.DOTALL)
    stack, _, essence = message.rstrip().rpartition("\n\n")
    frames = list(_FRAME.finditer(stack))
    made = "Made by {function} ({file}, line {line})."
    return StepError(
        f"{what} failed inside TensorFlow: {type(error).__name__}.",
        got=essence.strip(),
        expected="what can be computed; it was not applied",
        fix=_kept(path, read_again, seconds),
        details=made.format(**frames[-1].groupdict()) if frames else "",
    )


def _kept(
    path: Path, read_again: Callable[[], Mapping[str, np.ndarray] | None], seconds: float
) -> str:
    found: list[Any] = []

    def read() -> None:
        try:
            found.append(read_again())
        except BaseException as error:  # noqa: BLE001 - told beside the error that it belongs to
            found.append(error)

    thread = threading.Thread(target=read, name="towerpack-read-again", daemon=True)
    thread.start()
    thread.join(seconds)
    batch = found[0] if found else TimeoutError(f"not there after {seconds:.0f} s")
    if batch is None:
        return "look at the data of this step (they were made inside TensorFlow and are not kept)"
    try:
        if isinstance(batch, BaseException):
            raise batch
        save_arrays(path, batch)
    except Exception as error:  # noqa: BLE001 - told beside the error that it belongs to
        return f"look at the data of this step (not kept: {type(error).__name__}: {error})"
    return f"look at its batch, in {path}"
