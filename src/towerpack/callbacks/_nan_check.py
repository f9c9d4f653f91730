"""Checks for NaN: stop at a cost that is not finite, and check variables for NaN."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from towerpack._core.errors import NumericsError
from towerpack._core.npz import save_arrays
from towerpack.callbacks._base import Callback
from towerpack.callbacks._host import TrainerHost


class CheckNumerics(Callback):
    """End training with `NumericsError` at the first step whose cost is not finite.

    Every trainer has this callback by default. The step is not applied: weights and optimizer keep
    their values. The inputs of the step are saved by name as `nonfinite-step-XXXXXXXX.npz` in the
    run directory. The check is part of the compiled loop and takes hardly any time.

    Weights are checked before each checkpoint, because a cost can be finite although weights are
    NaN. Gradients are checked if the optimizer has the gradient processor `CheckGradient`.
    """

    chief_only = False

    def setup(self, trainer: TrainerHost) -> None:
        trainer.stop_on_nonfinite()

    def after_call(self) -> None:
        batch = self.trainer.nonfinite()
        if batch is None:
            return
        step = self.trainer.global_step + 1
        path = self.trainer.run_dir / f"nonfinite-step-{step:08d}.npz"
        bad = [f"input '{n}' has {k} such values" for n, k in _nonfinite(batch).items()]
        try:
            save_arrays(path, batch)
            look = f"check the batch of this step in {path}"
        except OSError as error:
            look = f"check your data (the batch could not be saved in {path}: {error})"
        gradients = self.trainer.nonfinite_gradients()
        name = "cost" if not gradients else f"gradient of {', '.join(gradients)}"
        fix = (
            "lower the learning rate, clip gradients (global_clipnorm=), or guard log(), sqrt() "
            "and divisions near zero"
        )
        got = "finite inputs: the overflow occurred in the model"
        if bad:
            got, fix = "; ".join(bad), "remove NaN and infinity from the data"
        elif not self.trainer.is_alone:
            got = "finite inputs in this worker"
            fix = f"check which worker has inputs that are not finite; if none has, {fix}"
        raise NumericsError(
            f"The {name} is NaN or infinite at step {step}.",
            got=got,
            expected="finite numbers (the step was not applied)",
            fix=f"{fix}; {look}",
        )


def _nonfinite(arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    floats = {n: a for n, a in arrays.items() if a.dtype.kind in "fcV"}  # V: bfloat16
    counts = {name: int((~np.isfinite(a)).sum()) for name, a in floats.items()}
    return {name: count for name, count in counts.items() if count}


class NaNWatch(Callback):
    """End the run with `NumericsError` once a variable of the model is NaN or infinite.

    `CheckNumerics` checks the cost of each step. This callback checks all variables after each
    epoch. Put it before evaluations in the list of callbacks.
    """

    def trigger(self) -> None:
        weights = self.trainer.get_weights()
        bad = [f"{name}: {n} of {weights[name].size}" for name, n in _nonfinite(weights).items()]
        if bad:
            raise NumericsError(
                f"{len(bad)} variables have NaN or infinite values at step {self.global_step}.",
                got="; ".join(bad[:10]) + ("; …" if bad[10:] else ""),
                fix="resume an earlier checkpoint, TrainConfig(resume=PATH), with a lower learning "
                "rate, and check that all datapoints are finite",
            )
