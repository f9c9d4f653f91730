"""Help in finding what goes wrong: NaN watches, a profile, a shell."""

from __future__ import annotations

import code
import contextlib
import pdb
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from towerpack._core.errors import ConfigError, NumericsError
from towerpack._core.extras import require
from towerpack._core.logs import get_logger
from towerpack._core.npz import save_arrays
from towerpack.callbacks._base import Callback

if TYPE_CHECKING:
    from towerpack.callbacks._host import TrainerHost

_log = get_logger(__name__)


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


class GraphProfiler(Callback):
    """Records what TensorFlow does in some steps, for TensorBoard's profile page.

    The trace is in `profile/` of the run directory. A run that is continued later than its first
    step records nothing.

    Args:
        first: The first of the steps; earlier ones compile, so not 1.
        steps: How many.

    Raises:
        ConfigError: A number is not positive.
    """

    def __init__(self, first: int = 20, steps: int = 5) -> None:
        if isinstance(first, bool) or isinstance(steps, bool) or first < 1 or steps < 1:
            raise ConfigError(
                f"GraphProfiler(first={first}, steps={steps}).",
                expected="numbers of steps, at least 1; flags that choose dumps do not exist",
            )
        self._before, self._last = first - 1, first - 1 + steps
        self._running = False

    def _profiler(self) -> Any:
        tensorflow = require("tensorflow", extra="tf", needed_for="GraphProfiler")
        return tensorflow.profiler.experimental

    def before_train(self) -> None:
        self._start_if_due()

    def trigger_step(self) -> None:
        self._start_if_due()
        if self._running and self.global_step >= self._last:
            self._stop()

    def _start_if_due(self) -> None:
        if self.global_step == self._before:
            self._profiler().start(str(self.trainer.run_dir / "profile"))
            self._running = True

    def _stop(self) -> None:
        self._running = False
        self._profiler().stop()
        _log.info("A profile of the steps until %d is in profile/.", self.global_step)

    def after_train(self) -> None:
        if self._running:
            self._stop()

    def next_stop(self, step: int) -> int | None:
        return next((at for at in (self._before, self._last) if at > step), None)


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


Shell = Literal["python", "pdb"]


class InjectShell(Callback):
    """Open a shell at the next trigger once there is a certain file in the run directory.

    `touch RUN_DIR/shell` stops the training at the end of the epoch; in the shell `self` is this
    callback and `trainer` the trainer. The file is removed; training goes on when the shell is
    left. Where input is no terminal, nothing is opened, and a warning says so.

    Args:
        file: Its name.
        shell: 'python' or 'pdb'.

    Raises:
        ConfigError: There is no such shell.
    """

    def __init__(self, file: str = "shell", shell: Shell = "python") -> None:
        if shell not in ("python", "pdb"):
            raise ConfigError(f"InjectShell(shell={shell!r}).", expected="'python' or 'pdb'")
        self._file, self._shell = file, shell

    def before_train(self) -> None:
        _log.info("For a shell inside of the run: touch %s", self.trainer.run_dir / self._file)

    def trigger(self) -> None:
        path = self.trainer.run_dir / self._file
        if not path.exists():
            return
        path.unlink(missing_ok=True)
        if not sys.stdin.isatty():
            _log.warning("%s was there, but input is no terminal: no shell is opened.", path)
            return
        # Python's own exit() closes the input for good.
        names = {"self": self, "trainer": self.trainer, "exit": sys.exit, "quit": sys.exit}
        banner = f"Step {self.global_step}: `trainer`, `self`. Leave the shell to go on."
        if self._shell == "python":
            with contextlib.suppress(SystemExit):
                code.interact(banner, local=names, exitmsg="")
        else:
            _log.info("%s (c)", banner)
            trainer = self.trainer  # noqa: F841 - to be looked at
            pdb.set_trace()
