"""Training on several devices of one machine that do not wait for one another."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.inputs import InputSource
from towerpack.training.config import TrainConfig
from towerpack.training.distribution.base import Compute, Computed, Distribution, SharedVariables
from towerpack.training.loop.executor import BUDGET_S, Executor, StepParts
from towerpack.training.loop.shared_call import SharedCall, Work, counters, joined, no_batch
from towerpack.training.loop.tensorflow_error import step_error
from towerpack.training.steps.step import TrainStep
from towerpack.training.steps.step_runner import CallResult, StepRunner
from towerpack.training.trainers.multi_gpu import Devices, MultiGPUTrainer


class AsyncMultiGPUTrainer(MultiGPUTrainer):
    """Train on several devices, each of which moves the shared variables as soon as it can.

    A step is one batch, computed and applied by one device, whatever the others have done to the
    weights in the meantime. Numbers of summaries come from all devices.

    Args:
        config: What to train; None to leave that to `launch_train_with_config`.
        devices: As for `SyncMultiGPUTrainer`.
        scale_gradient: Divide gradients by the number of devices, so that as many steps move the
            weights about as far as one of `SyncMultiGPUTrainer`.
        step: What one step is; None for one cost and one optimizer.

    Raises:
        ConfigError: A device does not exist or is listed twice; the run is to be deterministic.
    """

    def __init__(
        self,
        config: TrainConfig | Devices | None = None,
        devices: Devices | None = None,
        *,
        scale_gradient: bool = True,
        step: TrainStep | None = None,
    ) -> None:
        self._scale_gradient = scale_gradient
        super().__init__(config, devices, step=step)

    def _over(self, devices: list[str]) -> Distribution:
        self._devices = devices
        return SharedVariables()

    def _make_runner(self, parts: StepParts) -> StepRunner:
        scale = 1.0 / len(self._devices) if self._scale_gradient else 1.0
        return AsyncExecutor(parts, self._devices, scale)

    def configure(self, config: TrainConfig) -> None:
        """As `Trainer.configure`; refuses a deterministic run."""
        refuse_deterministic(config, type(self).__name__)
        super().configure(config)


def refuse_deterministic(config: TrainConfig, trainer: str) -> None:
    """Refuse what asynchronous updates cannot keep."""
    if config.deterministic:
        raise ConfigError(
            f"{trainer} cannot train with deterministic=True.",
            got="updates that are applied in whatever order they are ready",
            fix="train in step, with SyncMultiGPUTrainer or MultiWorkerTrainer",
        )


class AsyncExecutor:
    """Distribute the steps of a call over devices, and wait for the last of them; a `StepRunner`.

    Each device has an `Executor` of its own and takes a share of what is left, again and again, so
    that a slow one takes fewer steps.

    Args:
        parts: Parts of the step. Each device has its own distribution.
        devices: Names of the devices.
        scale: Factor for the gradients.
    """

    budget_s = BUDGET_S

    def __init__(self, parts: StepParts, devices: Sequence[str], scale: float) -> None:
        self._devices = list(devices)
        self._global_step = parts.global_step
        self._source = parts.source
        self._schedules = parts.schedules
        # The step that a device is at decides what is dropped, and which data TensorInput gives.
        with tf.device("CPU:0"):
            self._at = [
                tf.Variable(tf.constant(0, tf.int64), trainable=False) for _ in self._devices
            ]
        self._counters: list[tf.Variable] = []
        self._executors = [
            Executor(replace(parts, distribution=_OneDevice(device, scale), global_step=at))
            for device, at in zip(self._devices, self._at, strict=True)
        ]

    @property
    def one_step_only(self) -> bool:
        return self._executors[0].one_step_only

    @property
    def has_heavy(self) -> bool:
        return self._executors[0].has_heavy

    def compile(self) -> None:
        for executor in self._executors:
            executor.compile()
        self._counters = counters(self._executors[0].optimizers)

    def run(self, steps: int, *, after: int) -> CallResult:
        call = SharedCall(self._schedules, self._counters, steps, after)
        work = Work(after, steps, 2 * len(self._devices))
        with ThreadPoolExecutor(len(self._devices), "towerpack-device") as pool:
            futures = [pool.submit(self._run_on, i, work) for i in range(len(self._devices))]
        results = dict(part for future in futures for part in future.result())
        result = joined([results[start] for start in sorted(results)])
        call.end(result.steps, applied=result.steps)
        # The loop knows of one batch that was not applied; several devices may have met such.
        bad = sum(part.nonfinite is not None for part in results.values())
        self._source.consumed(max(bad - 1, 0))
        return result

    def run_heavy(self, *, after: int) -> CallResult:
        self._at[0].assign(after)
        result = self._executors[0].run_heavy(after=after)
        self._global_step.assign_add(result.steps)
        return result

    def _run_on(self, device: int, work: Work) -> list[tuple[int, CallResult]]:
        """In a thread: what a device has done of the work, by the step before it."""
        done: list[tuple[int, CallResult]] = []
        try:
            while share := work.take():
                start, steps = share
                self._at[device].assign(start)
                result = self._executors[device].run(steps, after=start)
                self._global_step.assign_add(result.steps)
                done.append((start, result))
                if result.nonfinite is not None:
                    work.end()
        except tf.errors.OpError as error:
            work.end()
            what = f"One of the steps after step {work.after}, on {self._devices[device]},"
            raise step_error(error, what, Path(), no_batch) from None
        except BaseException:
            work.end()
            raise
        return done


class _OneDevice(SharedVariables):
    def __init__(self, device: str, scale: float) -> None:
        super().__init__([device])
        self._scale = scale

    def replicate(
        self, compute: Compute, source: InputSource, step: tf.Variable
    ) -> tuple[list[tf.Tensor], Computed]:
        inputs, computed = super().replicate(compute, source, step)
        gradients = [[self._scaled(g) for g in of] for of in computed.gradients]
        return inputs, computed._replace(gradients=gradients)

    def _scaled(self, gradient: Any) -> Any:
        return None if gradient is None else tf.math.scalar_mul(self._scale, gradient)
