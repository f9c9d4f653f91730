"""Callbacks for debugging: checks for NaN, a profile, a shell."""

from __future__ import annotations

import code
import contextlib
import pdb
import sys
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from towerpack._core.errors import ConfigError, NumericsError
from towerpack._core.extras import require
from towerpack._core.logs import get_logger
from towerpack._core.npz import save_arrays
from towerpack.callbacks._base import Callback
from towerpack.callbacks._host import TrainerHost

_log = get_logger(__name__)


class CheckNumerics(Callback):
    """End training with `NumericsError` at the first step whose cost is not finite.

    Every trainer has this callback by default. The step is not applied: weights and optimizer stay
    as they were before it. Its inputs are saved by name as `nonfinite-step-XXXXXXXX.npz` in the run
    directory. The check is part of the compiled loop and takes hardly any time.

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
            look = f"look at the batch of this step in {path}"
        except OSError as error:
            look = f"look at your data (the batch could not be saved in {path}: {error})"
        gradients = self.trainer.nonfinite_gradients()
        name = "cost" if not gradients else f"gradient of {', '.join(gradients)}"
        fix = (
            "lower the learning rate, clip gradients (global_clipnorm=), or guard log(), sqrt() "
            "and divisions near zero"
        )
        got = "finite inputs: the overflow occurred in the model"
        if bad:
            got, fix = "; ".join(bad), "clean the data"
        elif not self.trainer.is_alone:
            got = "finite inputs in this worker"
            fix = f"see which worker has inputs that are not finite; if none has, {fix}"
        raise NumericsError(
            f"The {name} is NaN or infinite at step {step}.",
            got=got,
            expected="finite numbers; the step was not applied",
            fix=f"{fix}; {look}",
        )


def _nonfinite(arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Return the number of NaN or infinite values of each array that has some."""
    floats = {n: a for n, a in arrays.items() if a.dtype.kind in "fcV"}  # V: bfloat16
    counts = {name: int((~np.isfinite(a)).sum()) for name, a in floats.items()}
    return {name: count for name, count in counts.items() if count}


class GraphProfiler(Callback):
    """Record a TensorFlow profile of some steps, for TensorBoard's profile page.

    The profile is written to `profile/` in the run directory.

    Args:
        first: Number of the first recorded step. The first steps of a run include compilation.
        steps: Number of recorded steps.

    Raises:
        ConfigError: An argument is not a positive integer.
    """

    def __init__(self, first: int = 20, steps: int = 5) -> None:
        if isinstance(first, bool) or isinstance(steps, bool) or first < 1 or steps < 1:
            raise ConfigError(
                "GraphProfiler: first and steps must be integers of at least 1 (there are no flags "
                f"for dumps), got first={first} and steps={steps}."
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
        _log.info("Saved a profile of the steps until %d in profile/.", self.global_step)

    def after_train(self) -> None:
        if self._running:
            self._stop()

    def next_stop(self, step: int) -> int | None:
        return next((stop for stop in (self._before, self._last) if stop > step), None)


class NaNWatch(Callback):
    """End the run with `NumericsError` once a variable of the model is NaN or infinite.

    While `CheckNumerics` checks the cost of each step, this callback checks all variables after
    each epoch. Put it before evaluations in the list of callbacks.
    """

    def trigger(self) -> None:
        weights = self.trainer.get_weights()
        bad = [f"{name}: {n} of {weights[name].size}" for name, n in _nonfinite(weights).items()]
        if bad:
            raise NumericsError(
                f"{len(bad)} variables contain NaN or infinite values at step {self.global_step}.",
                got="; ".join(bad[:10]) + ("; …" if bad[10:] else ""),
                fix="continue from an earlier checkpoint, TrainConfig(resume=PATH), with a lower "
                "learning rate; for statistics, look for datapoints that are not finite",
            )


Shell = Literal["python", "pdb"]


class InjectShell(Callback):
    """Open a shell at the end of an epoch if a certain file exists in the run directory.

    After `touch RUN_DIR/shell`, training pauses at the end of the epoch. In the shell, `self` is
    this callback and `trainer` the trainer. Training goes on when the shell is closed; the file is
    removed. If the input is not a terminal, a warning is logged instead.

    Args:
        file: Name of the file.
        shell: 'python' or 'pdb'.

    Raises:
        ConfigError: `shell` is unknown.
    """

    def __init__(self, file: str = "shell", shell: Shell = "python") -> None:
        if shell not in ("python", "pdb"):
            raise ConfigError(f"InjectShell: shell must be 'python' or 'pdb', got {shell!r}.")
        self._file, self._shell = file, shell

    def before_train(self) -> None:
        _log.info("To open a shell inside the run: touch %s", self.trainer.run_dir / self._file)

    def trigger(self) -> None:
        path = self.trainer.run_dir / self._file
        if not path.exists():
            return
        path.unlink(missing_ok=True)
        if not sys.stdin.isatty():
            _log.warning("Cannot open a shell for %s: the input is not a terminal.", path)
            return
        # Python's own exit() would close the standard input.
        names = {"self": self, "trainer": self.trainer, "exit": sys.exit, "quit": sys.exit}
        banner = f"Step {self.global_step}: see `trainer` and `self`. Exit to continue training."
        if self._shell == "python":
            with contextlib.suppress(SystemExit):
                code.interact(banner, local=names, exitmsg="")
        else:
            _log.info("%s (c)", banner)
            trainer = self.trainer  # noqa: F841 - to be looked at
            pdb.set_trace()
