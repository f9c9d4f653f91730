"""Training on several devices of one machine that do not wait for one another."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.inputs import InputSource
from towerpack.training.config import TrainConfig
from towerpack.training.distribution.base import Compute, Computed, Distribution, SharedVariables
from towerpack.training.loop.executor import BUDGET_S, Executor
from towerpack.training.loop.failed_step import step_error
from towerpack.training.optim.adapter import KerasOptimizer, OptimizerAdapter
from towerpack.training.optim.schedules import Schedules
from towerpack.training.steps.call_result import CallResult
from towerpack.training.steps.step import TrainStep
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

    def _make_executor(self, **parts: Any) -> AsyncExecutor:
        return AsyncExecutor(devices=self._devices, scale_gradient=self._scale_gradient, **parts)

    def configure(self, config: TrainConfig) -> None:
        """As `Trainer.configure`; refuses a deterministic run."""
        refuse_deterministic(config, type(self).__name__)
        super().configure(config)


def refuse_deterministic(config: TrainConfig, trainer: str) -> None:
    """Refuse what asynchronous updates cannot keep.

    Raises:
        ConfigError: The run is to be deterministic.
    """
    if config.deterministic:
        raise ConfigError(
            f"{trainer} cannot train with deterministic=True.",
            got="updates that are applied in whatever order they are ready",
            fix="train in step, with SyncMultiGPUTrainer or MultiWorkerTrainer",
        )


class AsyncExecutor:
    """Executor that distributes the steps of a call over devices, and waits for the last of them.

    Each device has an `Executor` of its own and takes a share of what is left, again and again, so
    that a slow one takes fewer steps. Has the face of `Executor`.

    Args:
        devices: Where the steps run.
        scale_gradient: Divide gradients by the number of devices.
        global_step: Counts what was applied.
        source: Gives each step its batch.
        schedules: Variables that are set after each step.
        distribution: Not used: each device is its own.
        parts: What else an `Executor` takes.
    """

    budget_s = BUDGET_S

    def __init__(
        self,
        *,
        devices: Sequence[str],
        scale_gradient: bool,
        global_step: tf.Variable,
        source: InputSource,
        schedules: Schedules | None = None,
        distribution: Any = None,
        **parts: Any,
    ) -> None:
        self._devices = list(devices)
        self._global_step = global_step
        self._source = source
        self._schedules = schedules or Schedules()
        scale = 1.0 / len(self._devices) if scale_gradient else 1.0
        # The step that a device is at decides what is dropped, and which data TensorInput gives.
        with tf.device("CPU:0"):
            self._at = [
                tf.Variable(tf.constant(0, tf.int64), trainable=False) for _ in self._devices
            ]
        self._counters: list[tf.Variable] = []
        self._executors = [
            Executor(
                distribution=_OneDevice(device, scale),
                global_step=at,
                source=source,
                schedules=self._schedules,
                **parts,
            )
            for device, at in zip(self._devices, self._at, strict=True)
        ]

    @property
    def one_step_only(self) -> bool:
        """A call must not run more than one step."""
        return self._executors[0].one_step_only

    @property
    def has_heavy(self) -> bool:
        """The model has histograms or images, for the last step of each epoch."""
        return self._executors[0].has_heavy

    def compile(self) -> None:
        """Trace what each device runs."""
        for executor in self._executors:
            executor.compile()
        self._counters = counters(self._executors[0].optimizers)

    def run(self, steps: int, *, after: int) -> CallResult:
        """Run steps; fewer if a cost was not finite. See `Executor.run`."""
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
        """Run one step on the first device, with the summaries that are too dear for every step."""
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


class SharedCall:
    """What shares of a call, which end in any order, leave wrong, to be set right at its end.

    Args:
        schedules: Shares that ended later may have set earlier values.
        counters: Shares read and write them apart, so that counts are lost.
        steps: How many steps the call has.
        after: The step before it.

    Attributes:
        due: What schedules give for its steps.
    """

    def __init__(
        self, schedules: Schedules, counters: Sequence[tf.Variable], steps: int, after: int
    ) -> None:
        self._schedules = schedules
        self._before = [(counter, counter.numpy()) for counter in counters]
        self.due = schedules.due(steps, after)

    def end(self, steps: int, *, applied: int) -> None:
        """Set them right; more may have been applied than steps are done, some of them twice."""
        if steps:
            self._schedules.assign_after(steps, self.due)
        for counter, value in self._before:
            counter.assign(value + applied)


class Work:
    """Queue of the steps that are left to do, for several threads."""

    def __init__(self, after: int, steps: int, parts: int) -> None:
        self.after = self._next = after
        self._end = after + steps
        self._parts = parts
        self._lock = threading.Lock()

    def take(self) -> tuple[int, int] | None:
        """The step before some of them, and how many; smaller shares towards the end."""
        with self._lock:
            start = self._next
            self._next += -(-(self._end - start) // self._parts)
            return (start, self._next - start) if self._next > start else None

    def end(self) -> None:
        """Nothing more is to be done."""
        with self._lock:
            self._end = self._next


class _OneDevice(SharedVariables):
    """One replica; its gradients are scaled."""

    def __init__(self, device: str, scale: float) -> None:
        super().__init__([device])
        self._scale = scale

    def replicate(
        self, compute: Compute, source: InputSource, step: tf.Variable
    ) -> tuple[list[tf.Tensor], Computed]:
        """As `SharedVariables.replicate`."""
        inputs, computed = super().replicate(compute, source, step)
        gradients = [[self._scaled(g) for g in of] for of in computed.gradients]
        return inputs, computed._replace(gradients=gradients)

    def _scaled(self, gradient: Any) -> Any:
        return None if gradient is None else tf.math.scalar_mul(self._scale, gradient)


def counters(optimizers: Sequence[OptimizerAdapter]) -> list[tf.Variable]:
    """What Keras optimizers count steps with: they read and write it apart, so counts are lost.

    Those inside of wrappers do not take every step, and are left to themselves.
    """
    plain = [optimizer for optimizer in optimizers if type(optimizer) is KerasOptimizer]
    found = (optimizer.variables().get("iteration") for optimizer in plain)
    return [variable for variable in found if variable is not None]


def no_batch() -> None:
    """Say why the batch of a failed step is not kept; for `step_error`.

    Raises:
        LookupError: Always.
    """
    raise LookupError("devices that do not wait for one another take batches as they come")


def joined(results: Sequence[CallResult]) -> CallResult:
    """Results of shares of a call, in the order of their steps."""
    nonfinite = (r.nonfinite for r in results if r.nonfinite is not None)
    return CallResult(
        steps=sum(r.steps for r in results),
        outputs={
            name: _in_a_row([r.outputs[name] for r in results]) for name in results[0].outputs
        },
        summaries={
            n: np.concatenate([r.summaries[n] for r in results]) for n in results[0].summaries
        },
        heavy=results[-1].heavy,
        nonfinite=next(nonfinite, None),
    )


def _in_a_row(values: Sequence[Any]) -> Any:
    if all(isinstance(value, np.ndarray) for value in values):
        return np.concatenate(values)
    return [array for value in values for array in value]
