"""One picture of what was learned and how."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._core.extras import require
from towerpack._core.files import replace_file
from towerpack.apps.digits._data import Digits
from towerpack.callbacks.monitors import Monitors

_COLUMNS, _ROWS = 8, 4
_RIGHT, _WRONG = "#1b7f4b", "#c0392b"


def draw(path: Path, digits: Digits, prob: np.ndarray, monitors: Monitors) -> None:
    """Write a PNG: sample digits with true and predicted labels, and the curves.

    The samples begin with the digits that the model gets wrong, then those it is least sure of.

    Args:
        path: Where to.
        digits: The test digits.
        prob: [n, 10] predicted probabilities.
        monitors: Has the history of `cost`, `val/cost`, `val/error`.

    Raises:
        MissingExtraError: Matplotlib is not installed.
    """
    require("matplotlib", extra="demo", needed_for="The picture")
    # Not pyplot, which keeps figures alive and may look for a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 9), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=[_ROWS * 1.25, 3.2])
    top, bottom = halves
    _draw_digits(top, digits, prob)
    _draw_curves(bottom, monitors)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    replace_file(path, buffer.getvalue())


def _draw_digits(figure: Any, digits: Digits, prob: np.ndarray) -> None:
    predicted = prob.argmax(axis=1)
    wrong = np.flatnonzero(predicted != digits.labels)
    num_wrong = len(wrong)
    sure = prob[np.arange(len(prob)), predicted]
    hardest = [i for i in np.argsort(sure) if i not in set(wrong)]
    half = _COLUMNS * _ROWS // 2
    shown = [*wrong[:half], *hardest][:half]
    rest = np.setdiff1d(np.arange(len(digits)), shown)
    shown = [*shown, *rest[:: max(1, len(rest) // half)][:half]]
    figure.suptitle(
        f"{len(digits)} test digits, {num_wrong} wrong "
        f"({100 * (1 - num_wrong / len(digits)):.2f} % right): the hardest, then samples",
        fontsize=13,
    )
    axes = figure.subplots(_ROWS, _COLUMNS)
    for axis, i in zip(axes.flat, shown, strict=False):
        right = predicted[i] == digits.labels[i]
        axis.imshow(digits.images[i], cmap="gray_r", vmin=0, vmax=1)
        axis.set_title(
            f"true {digits.labels[i]}\npredicted {predicted[i]} ({100 * sure[i]:.0f} %)",
            fontsize=7,
            color=_RIGHT if right else _WRONG,
            fontweight="normal" if right else "bold",
        )
    for axis in axes.flat:
        axis.set_axis_off()


def _draw_curves(figure: Any, monitors: Monitors) -> None:
    left, right = figure.subplots(1, 2)
    for name, label in (("cost", "training"), ("val/cost", "validation")):
        _plot(left, monitors, name, label)
    left.set(title="Loss", xlabel="step", yscale="log")
    for name, label in (
        ("train/error", "training, augmented (moving average)"),
        ("val/error", "validation"),
    ):
        _plot(right, monitors, name, label, scale=100)
    right.set(title="Error", xlabel="step", ylabel="% wrong")
    right.set_ylim(bottom=0)
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.legend()


def _plot(axis: Any, monitors: Monitors, name: str, label: str, scale: float = 1) -> None:
    history = monitors.history(name)
    steps = [step for step, _ in history]
    axis.plot(steps, [scale * value for _, value in history], marker=".", label=label)
