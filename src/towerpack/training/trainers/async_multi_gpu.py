"""Asynchronous training on several devices of one machine."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

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
    """Trainer for several devices, each of which updates the shared variables without waiting.

    A step is one batch, computed and applied by one device. Other devices may have changed the
    weights in the meantime. Summaries are recorded from all devices.

    Args:
        config: Configuration; None if `launch_train_with_config` passes it later.
        devices: See `SyncMultiGPUTrainer`.
        scale_gradient: Divide gradients by the number of devices. As many steps as there are
            devices then move the weights about as far as one step of `SyncMultiGPUTrainer`.
        step: Definition of a step; None for one cost and one optimizer.

    Raises:
        ConfigError: A device does not exist or is listed twice, or `deterministic` is set.
    """

    _asynchronous = True

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


class AsyncExecutor:
    """`StepRunner` that divides the steps of a call among devices and waits for all of them.

    Each device has a separate `Executor` and repeatedly takes a share of the remaining steps, so
    that slow devices take fewer steps. Gradients are multiplied by `scale`.
    """

    budget_s = BUDGET_S

    def __init__(self, parts: StepParts, devices: Sequence[str], scale: float) -> None:
        self._devices = list(devices)
        self._global_step = parts.global_step
        self._source = parts.source
        self._schedules = parts.schedules
        # The number of a device's current step seeds its dropout and selects TensorInput's data.
        with tf.device("CPU:0"):
            self._device_steps = [
                tf.Variable(tf.constant(0, tf.int64), trainable=False) for _ in self._devices
            ]
        self._counters: list[tf.Variable] = []
        self._executors = [
            Executor(replace(parts, distribution=_OneDevice(device, scale), global_step=step))
            for device, step in zip(self._devices, self._device_steps, strict=True)
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
        # The loop counts one batch that was not applied, but several devices may have had one.
        skipped = sum(part.nonfinite is not None for part in results.values())
        self._source.consumed(max(skipped - 1, 0))
        return result

    def run_heavy(self, *, after: int) -> CallResult:
        self._device_steps[0].assign(after)
        result = self._executors[0].run_heavy(after=after)
        self._global_step.assign_add(result.steps)
        return result

    def _run_on(self, device: int, work: Work) -> list[tuple[int, CallResult]]:
        """Run shares of the work on a device. Return each share's start and result."""
        done: list[tuple[int, CallResult]] = []
        try:
            while share := work.take():
                start, steps = share
                self._device_steps[device].assign(start)
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
        gradients = [[self._scaled(g) for g in group] for group in computed.gradients]
        return inputs, computed._replace(gradients=gradients)

    def _scaled(self, gradient: Any) -> Any:
        return None if gradient is None else tf.math.scalar_mul(self._scale, gradient)
