"""A watch over the cost: a run that has become NaN ends, with what led there kept."""

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
    """Ends training with an error at the first step whose cost is not finite.

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
        """Have the loop stop there."""
        trainer.stop_on_nonfinite()

    def after_call(self) -> None:
        """Raise if the loop has stopped at such a step.

        Raises:
            NumericsError: It has, at the cost or at a gradient.
        """
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
        if not odd and not self.trainer.is_alone:
            raise NumericsError(
                f"The {what} is NaN or infinite at step {step}, over all workers.",
                got="finite inputs in this one",
                expected="finite numbers; the step was not applied",
                fix="see which worker says that its inputs are not finite; if none does, lower the "
                f"learning rate or clip gradients; {look}",
            )
        raise NumericsError(
            f"The {what} is NaN or infinite at step {step}.",
            got="; ".join(odd) if odd else "finite inputs: the model's own numbers overflow",
            expected="finite numbers; the step was not applied, the weights are those before it",
            fix="clean the data; " + look
            if odd
            else "lower the learning rate, clip gradients (global_clipnorm=), or guard log(), "
            "sqrt() and divisions near zero; " + look,
        )


def _nonfinite(arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    floats = {n: a for n, a in arrays.items() if a.dtype.kind in "fcV"}  # V: bfloat16
    found = {name: int((~np.isfinite(a)).sum()) for name, a in floats.items()}
    return {name: count for name, count in found.items() if count}
