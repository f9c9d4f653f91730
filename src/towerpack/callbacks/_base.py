"""Base class of callbacks, and a list of callbacks that acts as one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Any

from towerpack._core import old_hooks
from towerpack._core.arguments import KeepsArguments, arguments_of
from towerpack._core.errors import CallbackError
from towerpack._core.naming import did_you_mean
from towerpack.callbacks._host import TrainerHost

_SAME_HOOKS = ("before_train", "before_epoch", "trigger_step", "after_epoch", "trigger_epoch")
_OLD_HOOKS = {f"_{hook}": (hook, 0) for hook in (*_SAME_HOOKS, "trigger", "after_train")}
_OLD_HOOKS["_setup_graph"] = ("setup", 0)
_NO_HOOKS = {
    "_before_run": "request outputs by name: self.fetch('name') in setup(self, trainer)",
    "_after_run": "read outputs['name'] in after_step(self, outputs)",
}
_INSTEAD_OF_KERAS = {
    "BackupAndRestore": "leave out BackupAndRestore: runs are resumed by default",
    "CSVLogger": "add CSVMonitor() to TrainConfig(monitors=…)",
    "EarlyStopping": "use towerpack.callbacks.EarlyStopping('val/error', patience=5)",
    "LearningRateScheduler": "use ScheduledHyperParamSetter('learning_rate', [(epoch, rate), …])",
    "ModelCheckpoint": "use ModelSaver(), and BestSaver('val/error') for the best checkpoint",
    "ReduceLROnPlateau": "use StatMonitorParamSetter('learning_rate', 'val/error', function, …)",
    "SwapEMAWeights": "wrap the optimizer: WeightEMA(optimizer, 0.999)",
    "TensorBoard": "leave out TensorBoard: TensorBoardMonitor() is used by default",
    "TerminateOnNaN": "leave out TerminateOnNaN: CheckNumerics() is used by default",
}
_OWN_CALLBACK = (
    "write a subclass of towerpack.callbacks.Callback. on_train_batch_end becomes after_step or "
    "trigger_step, on_epoch_end becomes trigger, and model.stop_training becomes "
    "self.trainer.request_stop()"
)


class Callback(KeepsArguments):
    """Base class of callbacks, which act at certain points of a training run.

    Override the hooks you need. They are called in this order, each for all callbacks in turn:

        setup → (trace, compile, restore) → before_train
        for each epoch: before_epoch
                        → { before_step → step → after_step(outputs) → trigger_step }*
                        → after_epoch → trigger_epoch (→ trigger)
        finally: after_train

    One TensorFlow call runs several steps. After the call, the hooks of its steps are called in
    order with the outputs of each step, and then `after_call`. Set `acts_between_steps` if a
    callback must act between two steps, or override `next_stop` to act at certain steps.

    Tensorpack's hook names (`_trigger_epoch`, …) also work. A class cannot be instantiated if it
    defines hooks without a successor (`_before_run`, `_after_run`), or both names of one hook.

    Attributes:
        acts_between_steps: Whether each TensorFlow call must be limited to one step.
        chief_only: Whether only the chief, the process that writes the run, calls the hooks.
        needs: Names of values that earlier callbacks must produce, such as `('val/error',)`.
        trainer: The trainer, set before `setup`.
    """

    acts_between_steps: bool = False
    chief_only: bool = True
    needs: Sequence[str] = ()
    trainer: TrainerHost
    _fetches: Sequence[str] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        old_hooks.adopt(cls, _OLD_HOOKS, _NO_HOOKS)

    @property
    def epoch_num(self) -> int:
        """Number of the current epoch, from 1."""
        return self.trainer.epoch

    @property
    def global_step(self) -> int:
        """Number of steps done in the whole run, including earlier starts."""
        return self.trainer.global_step

    @property
    def local_step(self) -> int:
        """Number of steps done in the current epoch."""
        return self.trainer.local_step

    def produces(self) -> Sequence[str]:
        """Return the names of the monitored values that `trigger` puts."""
        return ()

    def sets(self) -> Mapping[str, Collection[int] | None]:
        """Return the hyper-parameters that this callback sets, and the steps after which it does.

        The value is None for any step, or a `range` for a schedule that sets a value after each
        step.
        """
        return {}

    def fetch(self, *names: str) -> None:
        """Request outputs of each step for `after_step`. Call during `setup`.

        Args:
            *names: Names of outputs of the training tower.
        """
        self._fetches = tuple(dict.fromkeys([*self._fetches, *names]))

    @property
    def fetches(self) -> Sequence[str]:
        """Names requested with `fetch`."""
        return self._fetches

    def setup(self, trainer: TrainerHost) -> None:
        """Hook to check arguments and to call `fetch`, before the model is traced.

        Args:
            trainer: The trainer, the same as `self.trainer`.
        """

    def before_train(self) -> None:
        """Hook after the run is restored and before its first step."""

    def before_epoch(self) -> None:
        """Hook before the first step of an epoch. Not called if a run resumes inside an epoch."""

    def before_step(self) -> None:
        """Hook before each step."""

    def after_step(self, outputs: Mapping[str, Any]) -> None:
        """Hook after each step.

        Args:
            outputs: The fetched outputs of this step by name, as NumPy values.
        """

    def trigger_step(self) -> None:
        """Hook after each step, once `after_step` of all callbacks has been called."""

    def after_call(self) -> None:
        """Hook after each TensorFlow call and the hooks of its steps, for example to draw."""

    def after_epoch(self) -> None:
        """Hook after the last step of each epoch."""

    def trigger_epoch(self) -> None:
        """Hook after `after_epoch` of all callbacks. Calls `trigger` unless overridden."""
        self.trigger()

    def trigger(self) -> None:
        """Hook that is called once per epoch, or as often as `PeriodicTrigger` says."""

    def after_train(self) -> None:
        """Hook after training has ended, also if an error ended it."""

    def acts_in(self, hook: str) -> bool:
        """Return whether the callback does anything in a hook. If not, the loop skips the hook.

        Wrappers, and callbacks for which this depends on arguments, override this method.

        Args:
            hook: Name of a method, such as `'after_step'`.
        """
        names = (hook, "trigger") if hook == "trigger_epoch" else (hook,)
        return any(getattr(type(self), n) is not getattr(Callback, n) for n in names)

    def next_stop(self, step: int) -> int | None:
        """Return the next global step after which a TensorFlow call must end for `trigger_step`.

        Args:
            step: Number of steps done. The result is larger, or None if any call length is fine.
        """
        return None

    def settings(self) -> Any:
        """Return settings that a resumed run compares, to report changes.

        By default, these are the constructor's arguments. The result is a mapping of any values,
        one value, or None. Functions are compared by their code and the values that they refer to.
        """
        return arguments_of(self)

    def state(self) -> Any:
        """Return the state for checkpoints: numbers, strings, bytes, lists and dicts, or None."""
        return None

    def restore(self, state: Any) -> None:
        """Restore the state from a checkpoint.

        Args:
            state: A result of `state`.
        """

    def __repr__(self) -> str:
        return type(self).__name__


class Callbacks(Callback):
    """Callback that calls the hooks of several callbacks in order.

    Args:
        callbacks: Callbacks. A `Callbacks` object among them is replaced by its items.

    Raises:
        CallbackError: An item is not a callback.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks: list[Callback] = []
        for callback in map(check_callback, callbacks):
            many = callback.callbacks if isinstance(callback, Callbacks) else [callback]
            self.callbacks.extend(many)

    def keys(self) -> list[str]:
        """Return a key for each callback, stable over restarts: its class and a number."""
        kinds = [repr(callback) for callback in self.callbacks]
        return [f"{kind}#{kinds[:i].count(kind)}" for i, kind in enumerate(kinds)]

    def check_order(self, known: Sequence[str]) -> None:
        """Check the order of callbacks, the values they produce and the hyper-parameters they set.

        Args:
            known: Names of the values that the trainer itself produces.

        Raises:
            CallbackError: A needed value is produced later or never. A name is produced twice. Two
                callbacks set one hyper-parameter, one of them after each step.
        """
        self._check_produced_once(known)
        self._check_set_once()
        available = list(known)
        later = {name: c for c in self.callbacks for name in c.produces()}
        for callback in self.callbacks:
            for need in callback.needs:
                if need in available:
                    continue
                if need in later:
                    raise CallbackError(
                        f"{callback!r} needs '{need}', but {later[need]!r} produces it only later.",
                        fix=f"put {later[need]!r} before {callback!r} in the list of callbacks",
                    )
                # The many names of timings would fill the list.
                names = [name for name in (*available, *later) if not name.startswith("time/")]
                raise CallbackError(
                    f"{callback!r} needs '{need}', but no callback produces it. "
                    f"{did_you_mean(need, names)}",
                    fix="correct the name, or return it in produces() of the callback that puts it",
                )
            available.extend(callback.produces())

    def _check_produced_once(self, known: Sequence[str]) -> None:
        by_name: dict[str, object] = dict.fromkeys(known, "the trainer")
        for callback in self.callbacks:
            for name in callback.produces():
                if name in by_name:
                    raise CallbackError(
                        f"{by_name[name]!s} and {callback!r} must not both produce '{name}'.",
                        fix="pass a different name or prefix to one of the callbacks",
                    )
                by_name[name] = callback

    def _check_set_once(self) -> None:
        settings = [(callback, callback.sets()) for callback in self.callbacks]
        for (first, first_sets), (second, second_sets) in combinations(settings, 2):
            for name, steps in first_sets.items():
                if name in second_sets and _collide(steps, second_sets[name]):
                    raise CallbackError(
                        f"{first!r} and {second!r} must not both set '{name}', because one is a "
                        "schedule that sets a value at each step.",
                        fix="remove one of them, or enable the other one only after the "
                        "schedule's last step: "
                        "EnableCallbackIf(callback, lambda c: c.global_step > last)",
                    )

    def setup(self, trainer: TrainerHost) -> None:
        for callback in self.callbacks:
            callback.trainer = trainer
            callback.setup(trainer)

    def state(self) -> dict[str, Any]:
        states = {k: c.state() for k, c in zip(self.keys(), self.callbacks, strict=True)}
        return {key: state for key, state in states.items() if state is not None}

    def restore(self, state: Mapping[str, Any]) -> None:
        for key, callback in zip(self.keys(), self.callbacks, strict=True):
            if key in state:
                callback.restore(state[key])


def check_callback(callback: Any) -> Callback:
    """Check that the argument is a callback and return it. Otherwise, raise `CallbackError`."""
    if not isinstance(callback, Callback):
        is_class = isinstance(callback, type)
        bases = (callback if is_class else type(callback)).__mro__
        of_keras = [base.__name__ for base in bases if base.__module__.startswith("keras.")]
        fix = "call the class: ModelSaver()" if is_class else None
        if of_keras:
            known = (_INSTEAD_OF_KERAS[name] for name in of_keras if name in _INSTEAD_OF_KERAS)
            fix = next(known, _OWN_CALLBACK)
        raise CallbackError(
            f"A {'Towerpack ' if of_keras else ''}callback is expected, got {callback!r}.",
            expected="instances of towerpack.callbacks.Callback",
            fix=fix,
        )
    return callback


def _collide(first: Collection[int] | None, second: Collection[int] | None) -> bool:
    if not isinstance(first, range):
        first, second = second, first
    return isinstance(first, range) and (second is None or any(step in first for step in second))
