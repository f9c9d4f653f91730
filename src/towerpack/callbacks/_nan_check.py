"""Checks for NaN and infinite costs, gradients and weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from towerpack._core.errors import NumericsError
from towerpack._core.npz import save_arrays
from towerpack.callbacks._base import Callback

if TYPE_CHECKING:
    from towerpack.callbacks._host import TrainerHost


class CheckNumerics(Callback):
    """End training with an error at the first step whose cost is not finite.

    That step is not applied: weights, optimizer and checkpoints stay as they were before it. Its
    inputs are saved in the run directory as `nonfinite-step-XXXXXXXX.npz`, by their names; read it
    with `numpy.load`. The check is part of the compiled loop and costs next to nothing.

    A cost can be finite although weights are NaN (`tf.nn.relu` hides NaN on a CPU), so the weights
    are looked at too, before each checkpoint: NaN weights are an error and are not saved. Gradients
    are looked at where `CheckGradient` is among the optimizer's processors.

    A default callback of every trainer.
    """

    chief_only = False

    def setup(self, trainer: TrainerHost) -> None:
        trainer.stop_on_nonfinite()

    def after_call(self) -> None:
        """Raise `NumericsError` if the loop stopped at a cost or gradient that is not finite."""
        batch = self.trainer.nonfinite()
        if batch is None:
            return
        step = self.trainer.global_step + 1
        path = self.trainer.run_dir / f"nonfinite-step-{step:08d}.npz"
        odd = [f"input '{n}' has {k} such values itself" for n, k in _nonfinite(batch).items()]
        try:
            save_arrays(path, batch)
            look = f"look at the batch that led there, in {path}"
        except OSError as error:
            look = f"look at your data (the batch could not be saved in {path}: {error})"
        gradients = self.trainer.nonfinite_gradients()
        what = "cost" if not gradients else f"gradient of {', '.join(gradients)}"
        fix = (
            "lower the learning rate, clip gradients (global_clipnorm=), or guard log(), sqrt() "
            "and divisions near zero"
        )
        got = "finite inputs: the model's own numbers overflow"
        if odd:
            got, fix = "; ".join(odd), "clean the data"
        elif not self.trainer.is_alone:
            got = "finite inputs in this worker"
            fix = f"see which worker has inputs that are not finite; if none has, {fix}"
        raise NumericsError(
            f"The {what} is NaN or infinite at step {step}.",
            got=got,
            expected="finite numbers; the step was not applied, the weights are those before it",
            fix=f"{fix}; {look}",
        )


def _nonfinite(arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """How many values of an array are NaN or infinite, where some are."""
    floats = {n: a for n, a in arrays.items() if a.dtype.kind in "fcV"}  # V: bfloat16
    found = {name: int((~np.isfinite(a)).sum()) for name, a in floats.items()}
    return {name: count for name, count in found.items() if count}


class NaNWatch(Callback):
    """End the run once a variable of the model is NaN or infinite.

    `CheckNumerics` looks at the cost of each step; statistics and parts that do not reach the cost
    are seen here. Put it first, so that nothing broken is evaluated. (Checkpoints hold no NaN.)
    """

    def trigger(self) -> None:
        """Raise `NumericsError` if a variable is not finite."""
        weights = self.trainer.get_weights()
        told = [f"{name}: {n} of {weights[name].size}" for name, n in _nonfinite(weights).items()]
        if told:
            raise NumericsError(
                f"{len(told)} variables hold NaN or infinite values at step {self.global_step}.",
                got="; ".join(told[:10]) + ("; …" if told[10:] else ""),
                expected="finite numbers",
                fix="continue from an earlier checkpoint, TrainConfig(resume=PATH), with a lower "
                "learning rate; for statistics, look for datapoints that are not finite",
            )
