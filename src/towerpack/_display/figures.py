"""Matplotlib figures. Matplotlib is imported when a function is called."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any, Final

import numpy as np

from towerpack._core.extras import require

# Classes up to which a figure has numbers in its cells, and names on its axes.
_MOST_NUMBERS: Final = 20
_MOST_NAMES: Final = 60
_LONGEST: Final = 24  # characters of a name


@contextlib.contextmanager
def without_latex() -> Generator[None]:
    """Draw texts without LaTeX, which a `matplotlibrc` of the working directory may request."""
    matplotlib: Any = require("matplotlib", extra="demo", needed_for="A plot")
    with matplotlib.rc_context({"text.usetex": False}):
        yield


@without_latex()
def draw_rates(
    rates: Sequence[float], costs: Sequence[float], smooth: Sequence[float], chosen: float | None
) -> Any:
    """Draw the costs of a learning rate search. Mark the chosen rate with a vertical line."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(rates, costs, color="0.8", label="cost of the step")
    axes.plot(rates, smooth, label="smoothed")
    axes.set(xscale="log", xlabel="learning rate", ylabel="cost")
    # Large costs at the end would compress the rest of the curve.
    low, high = min(costs), max(costs[:10])
    if high > low:
        axes.set_ylim(low - 0.1 * (high - low), high + 0.3 * (high - low))
    if chosen is not None:
        axes.axvline(chosen, color="C1", linestyle="--", label=f"half way: {chosen:.2g}")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


@without_latex()
def draw_confusion(matrix: np.ndarray, classes: Sequence[str]) -> Any:
    """Draw a confusion matrix. Colors show fractions of the true class, numbers show counts."""
    from matplotlib.figure import Figure

    size = len(classes)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    side = min(4 + 0.35 * size, 16)
    figure: Any = Figure(figsize=(side, side * 0.9), layout="constrained")
    axes = figure.add_subplot()
    shown = axes.imshow(100 * shares, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    figure.colorbar(shown, ax=axes, label="% of the true class", shrink=0.8)
    axes.set(xlabel="predicted", ylabel="true")
    if size <= _MOST_NAMES:
        names = [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in classes]
        names = [name.replace("$", r"\$") for name in names]  # not a formula
        axes.set_xticks(range(size), names, rotation=45, ha="right")
        axes.set_yticks(range(size), names)
    if size <= _MOST_NUMBERS:
        for row, column in np.argwhere(matrix):
            color = "w" if shares[row, column] > 0.5 else "k"
            text = str(matrix[row, column])
            axes.text(column, row, text, ha="center", va="center", color=color)
    return figure


@without_latex()
def pixels_of(figure: Any) -> np.ndarray:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
