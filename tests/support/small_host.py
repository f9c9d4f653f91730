"""A trainer as small as callbacks allow: counters, hooks in their order, no training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from every_hook import EveryHook
from towerpack import ConfigError
from towerpack.callbacks import Callback, Callbacks, HyperParam
from towerpack.callbacks.monitors import Monitors


class Param(HyperParam):
    """A hyper-parameter that keeps float32, as a variable does."""

    def __init__(self, value: float) -> None:
        self.value = np.float32(value)

    def get(self) -> float:
        return float(self.value)

    def set(self, value: float) -> None:
        self.value = np.float32(value)


class SmallHost:
    """Implements `TrainerHost`; `run` fires the hooks as the loop does, with K steps per call."""

    def __init__(
        self,
        run_dir: Path,
        callbacks: Sequence[Callback] = (),
        *,
        steps_per_epoch: int = 4,
        max_epoch: int = 3,
        steps_per_call: int = 4,
        tower: Any = None,
        params: Mapping[str, Any] | None = None,
        outputs: Callable[[int], Mapping[str, Any]] = lambda step: {},
    ) -> None:
        self.global_step = self.epoch = self.local_step = 0
        self.steps_per_epoch, self.max_epoch = steps_per_epoch, max_epoch
        self.seed = 1
        self.given_anew: set[str] = set()
        self.run_dir = run_dir
        self.tower = tower
        self.monitors = Monitors()
        self.params = {"learning_rate": Param(0.1)} if params is None else dict(params)
        self.callbacks = Callbacks(list(callbacks))
        self.schedules: list[tuple[str, Callable[[int], float | None]]] = []
        self.saves: list[tuple[int, dict[str, Any]]] = []
        self.calls: list[int] = []
        self.watches_cost = False
        self.bad_batch: Mapping[str, Any] | None = None
        self.expects_saves = False
        self.stopping = False
        self.polls = self.fast_dev_run = 0
        self.interrupt: BaseException | None = None
        self._steps_per_call = steps_per_call
        self._outputs = outputs

    # ------------------------------------------------------------- the protocol

    @property
    def in_epoch(self) -> bool:
        return 0 < self.local_step < self.steps_per_epoch

    def save(self, *, keep: int | None = None, best: str | None = None) -> None:
        self.saves.append((self.global_step, {"keep": keep, "best": best}))

    def will_save(self) -> None:
        self.expects_saves = True

    def hyper_param(self, name: str) -> Any:
        if name not in self.params:
            raise ConfigError(f"There is no hyper-parameter {name!r}.")
        return self.params[name]

    def hold(self, name: str, value: float | None) -> None:
        if value is not None:
            self.hyper_param(name).set(value)

    def hyper_param_names(self) -> Sequence[str]:
        return list(self.params)

    def schedule(self, name: str, schedule: Callable[[int], float | None]) -> None:
        self.schedules.append((name, schedule))

    def nonfinite_gradients(self) -> list[str]:
        return []

    def predict_function(
        self, outputs: Sequence[str], *, ema: bool = False
    ) -> tuple[Callable[..., Any], list[str]]:
        function, names = self.tower.trace(is_training=False).function(outputs)

        def on_arrays(*arrays: Any) -> Any:
            import tensorflow as tf

            return function(*(tf.convert_to_tensor(a) for a in arrays))

        return on_arrays, names

    def overfitted(self) -> None:
        return None

    def stop_on_nonfinite(self) -> None:
        self.watches_cost = True

    is_alone = True

    def nonfinite(self) -> Mapping[str, Any] | None:
        return self.bad_batch

    def get_weights(self, *, ema: bool = False) -> Mapping[str, np.ndarray]:
        return {name: v.numpy() for name, v in self.tower.store.named_variables().items()}

    def request_stop(self, reason: str = "") -> None:
        self.stopping = True

    def check_interrupt(self) -> None:
        self.polls += 1
        if self.interrupt is not None:
            raise self.interrupt

    # ------------------------------------------------------------- the loop

    def setup(self) -> SmallHost:
        self.callbacks.setup(self)
        self.callbacks.check_order(["cost"])
        return self

    def start(self) -> SmallHost:
        self.setup()
        for c in self.callbacks.callbacks:
            c.before_train()
        return self

    def run(self) -> SmallHost:
        """From the current counters to the end of `max_epoch`."""
        self.start()
        self.resume()
        return self

    def resume(self) -> None:
        each = self.callbacks.callbacks
        try:
            while self.epoch < self.max_epoch or 0 < self.local_step < self.steps_per_epoch:
                if self.stopping:
                    return
                if not 0 < self.local_step < self.steps_per_epoch:
                    self.epoch, self.local_step = self.epoch + 1, 0
                    for c in each:
                        c.before_epoch()
                while self.local_step < self.steps_per_epoch and not self.stopping:
                    self._call()
                if self.local_step < self.steps_per_epoch:
                    return
                for c in each:
                    c.after_epoch()
                for c in each:
                    c.trigger_epoch()
        finally:
            for c in each:
                c.after_train()

    def _call(self) -> None:
        each = self.callbacks.callbacks
        steps = min(self._steps_per_call, self.steps_per_epoch - self.local_step)
        for c in each:
            stop = c.next_stop(self.global_step)
            if stop is not None:
                assert stop > self.global_step
                steps = min(steps, stop - self.global_step)
        if any(c.acts_between_steps for c in each):
            steps = 1
        self.calls.append(steps)
        for _ in range(steps):
            self._hook("before_step")
            self.global_step += 1
            self.local_step += 1
            for name, schedule in self.schedules:
                value = schedule(self.global_step)
                if value is not None:
                    self.params[name].set(value)
            values = self._outputs(self.global_step)
            for c in each:
                if c.acts_in("after_step"):
                    c.after_step({name: values[name] for name in c.fetches})
            self._hook("trigger_step")
        self._hook("after_call")

    def _hook(self, name: str) -> None:
        for c in self.callbacks.callbacks:
            if c.acts_in(name):
                getattr(c, name)()


class PutValues(Callback):
    """Puts the next of some values at each trigger."""

    def __init__(self, name: str, values: Sequence[float | None]) -> None:
        self._name = name
        self._values = list(values)

    def produces(self) -> Sequence[str]:
        return [self._name]

    def trigger(self) -> None:
        value = self._values.pop(0)
        if value is not None:
            self.trainer.monitors.put_scalar(self._name, value, self.trainer.global_step)


class Note(EveryHook):
    """Writes down every hook with the step at which it fires."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []

    def on(self, hook: str) -> None:
        self.log.append((hook, self.trainer.global_step))


def round_trip(state: Any) -> Any:
    """As a checkpoint would give it back."""
    import json

    import msgpack

    assert json.loads(json.dumps(state, allow_nan=False)) == state
    return msgpack.unpackb(msgpack.packb(state))
