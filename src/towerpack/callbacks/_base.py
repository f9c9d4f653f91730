"""The base of callbacks, and a list of them as one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from towerpack._core import old_hooks
from towerpack._core.arguments import KeepsArguments, arguments_of
from towerpack._core.errors import CallbackError
from towerpack._core.naming import did_you_mean

if TYPE_CHECKING:
    from towerpack.callbacks._host import TrainerHost


_KEPT = ("before_train", "before_epoch", "trigger_step", "after_epoch", "trigger_epoch", "trigger")
_OLD_HOOKS = {f"_{hook}": (hook, 0) for hook in (*_KEPT, "after_train")}
_OLD_HOOKS["_setup_graph"] = ("setup", 0)
_NO_HOOKS = {
    "_before_run": "ask for outputs by name: self.fetch('name') in setup(self, trainer)",
    "_after_run": "read them, as outputs['name'], in after_step(self, outputs)",
}


_OF_KERAS = {
    "CSVLogger": "add CSVMonitor() to TrainConfig(monitors=…)",
    "EarlyStopping": "use towerpack.callbacks.EarlyStopping('val/error', patience=5)",
    "LearningRateScheduler": "use ScheduledHyperParamSetter('learning_rate', [(epoch, rate), …])",
    "ModelCheckpoint": "use ModelSaver(), and MinSaver('val/error') for the best checkpoint",
    "ReduceLROnPlateau": "use StatMonitorParamSetter('learning_rate', 'val/error', function, …)",
    "SwapEMAWeights": "wrap the optimizer: WeightEMA(optimizer, 0.999)",
    "TensorBoard": "leave it out: TensorBoardMonitor() is there by default",
    "TerminateOnNaN": "leave it out: CheckNumerics() is there by default",
}


class Callback(KeepsArguments):
    """Base of callbacks, which act at certain points of a training. Override what you need.

    Order in which the hooks fire (in the order of registration each):

        setup → (trace, compile, restore) → before_train
        for each epoch: before_epoch
                        → { before_step → step → after_step(outputs) → trigger_step }*
                        → after_epoch → trigger_epoch (→ trigger)
        finally: after_train

    Several steps run in one call of TensorFlow; the per-step hooks of those steps then fire after
    the call, in order, with each step's own outputs; `after_call` fires last. A callback that must
    *act* between two steps sets `acts_between_steps`; one that must act at certain steps says which
    in `next_stop`.

    Hooks by Tensorpack's names (`_trigger_epoch`, …) are called where they have a successor. A
    class that has others (`_before_run`, `_after_run`), or both names of one hook, cannot be
    instantiated.

    Attributes:
        acts_between_steps: True forces one step per call.
        chief_only: Where several processes train together, act only in the one that writes the run.
            False for what must act alike in all of them.
        needs: Names of monitored values that must be there when the callback is triggered, for
            example `('val/error',)`. Checked at setup against what earlier callbacks produce.
        trainer: The host, from `setup` on.
    """

    acts_between_steps: bool = False
    chief_only: bool = True
    needs: Sequence[str] = ()
    trainer: TrainerHost

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        old_hooks.adopt(cls, _OLD_HOOKS, _NO_HOOKS)

    @property
    def epoch_num(self) -> int:
        """Number of the current epoch, from 1."""
        return self.trainer.epoch

    @property
    def global_step(self) -> int:
        """Steps done since the very start."""
        return self.trainer.global_step

    @property
    def local_step(self) -> int:
        """Steps done in the current epoch."""
        return self.trainer.local_step

    def produces(self) -> Sequence[str]:
        """Names of the monitored values that this callback puts when it is triggered."""
        return ()

    def sets(self) -> Mapping[str, Collection[int] | None]:
        """Hyper-parameters that this callback sets, by name, with the steps after which it does.

        None for any step; a `range` for a schedule that sets it after each of these steps.
        """
        return {}

    def fetch(self, *names: str) -> None:
        """Ask, during `setup`, for outputs of each step; `after_step` finds them by name."""
        self.__dict__.setdefault("_fetches", [])
        self._fetches.extend(name for name in names if name not in self._fetches)

    @property
    def fetches(self) -> Sequence[str]:
        """What was asked for with `fetch`."""
        return self.__dict__.get("_fetches", ())

    _fetches: list[str]

    def setup(self, trainer: TrainerHost) -> None:
        """Before the model is traced: call `self.fetch(name)` here, check arguments."""

    def before_train(self) -> None:
        """Everything is restored; the first step comes next."""

    def before_epoch(self) -> None:
        """Before the first step of an epoch (not again where a resumed run starts inside one)."""

    def before_step(self) -> None:
        """Before a step."""

    def after_step(self, outputs: Mapping[str, Any]) -> None:
        """After a step, with the fetched outputs of exactly this step as NumPy values."""

    def trigger_step(self) -> None:
        """After all callbacks' `after_step`."""

    def after_call(self) -> None:
        """After each call of several steps, and the per-step hooks of those steps: for displays."""

    def after_epoch(self) -> None:
        """After the last step of an epoch."""

    def trigger_epoch(self) -> None:
        """After all callbacks' `after_epoch`; calls `trigger` unless overridden."""
        self.trigger()

    def trigger(self) -> None:
        """What the callback does every so often."""

    def after_train(self) -> None:
        """Training has ended, however it ended."""

    def acts_in(self, hook: str) -> bool:
        """Whether this object does anything in a hook; the loop passes over those that do not.

        A Python call for every callback and every step is not free. Wrappers, and callbacks whose
        arguments decide, override this.

        Args:
            hook: Name of a method, such as `'after_step'`.
        """
        names = (hook, "trigger") if hook == "trigger_epoch" else (hook,)
        return any(getattr(type(self), n) is not getattr(Callback, n) for n in names)

    def next_stop(self, step: int) -> int | None:
        """The next global step after `step` whose `trigger_step` must not be late; None if any."""
        return None

    def settings(self) -> Any:
        """Settings whose change a continued run reports: the constructor's arguments.

        A mapping of any values, or one value; None for nothing. Functions are compared by their
        code and the values that they refer to.
        """
        return arguments_of(self)

    def state(self) -> Any:
        """What a checkpoint must keep: numbers, strings, bytes, lists, dicts. None for nothing."""
        return None

    def restore(self, state: Any) -> None:
        """Take back what `state` gave."""

    def __repr__(self) -> str:
        return type(self).__name__


class Callbacks(Callback):
    """Several callbacks as one, in order.

    Raises:
        CallbackError: Something in the list is not a callback.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks: list[Callback] = []
        for callback in map(check_callback, callbacks):
            many = callback.callbacks if isinstance(callback, Callbacks) else [callback]
            self.callbacks.extend(many)

    def keys(self) -> list[str]:
        """A name for each callback that stays the same over restarts: its class and number."""
        counts: dict[str, int] = {}
        keys = []
        for callback in self.callbacks:
            kind = repr(callback)
            counts[kind] = counts.get(kind, -1) + 1
            keys.append(f"{kind}#{counts[kind]}")
        return keys

    def check_order(self, known: Sequence[str]) -> None:
        """Check that every need is met by an earlier callback, or by the trainer.

        Args:
            known: What the trainer itself puts, the model's summaries included.

        Raises:
            CallbackError: A need is met too late, or not at all; or a name is produced twice; or
                two set one hyper-parameter, one of them after each step.
        """
        self._check_produced_once(known)
        self._check_set_once()
        there = list(known)
        later = {name: c for c in self.callbacks for name in c.produces()}
        for callback in self.callbacks:
            for need in callback.needs:
                if need in there:
                    continue
                if need in later:
                    raise CallbackError(
                        f"{callback!r} needs '{need}', which {later[need]!r} produces after it.",
                        fix=f"put {later[need]!r} before {callback!r} in the list of callbacks",
                    )
                # The many names of where the time went would fill the list.
                names = [name for name in (*there, *later) if not name.startswith("time/")]
                raise CallbackError(
                    f"{callback!r} needs '{need}', which nothing produces.",
                    fix=f"{did_you_mean(need, names)} A callback of your own that puts "
                    "it names it in produces().",
                )
            there.extend(callback.produces())

    def _check_produced_once(self, known: Sequence[str]) -> None:
        by_name: dict[str, object] = dict.fromkeys(known, "the trainer")
        for callback in self.callbacks:
            for name in callback.produces():
                if name in by_name:
                    raise CallbackError(
                        f"{by_name[name]!s} and {callback!r} both produce '{name}'.",
                        fix="give one of them another name or prefix",
                    )
                by_name[name] = callback

    def _check_set_once(self) -> None:
        every = [(callback, callback.sets()) for callback in self.callbacks]
        for (one, ours), (other, theirs) in combinations(every, 2):
            for name, steps in ours.items():
                if name in theirs and _collide(steps, theirs[name]):
                    raise CallbackError(
                        f"{one!r} and {other!r} both set '{name}', and a schedule by steps lets no "
                        "other value stand.",
                        fix="leave one of them out, or let it act after the schedule's last step: "
                        "EnableCallbackIf(callback, lambda c: c.global_step > last)",
                    )

    def setup(self, trainer: TrainerHost) -> None:
        """Give every callback its host, then set it up."""
        for callback in self.callbacks:
            callback.trainer = trainer
            callback.setup(trainer)

    def state(self) -> dict[str, Any]:
        """The states of those that have one."""
        states = {k: c.state() for k, c in zip(self.keys(), self.callbacks, strict=True)}
        return {key: state for key, state in states.items() if state is not None}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Hand each callback its state; those that are new keep their own."""
        for key, callback in zip(self.keys(), self.callbacks, strict=True):
            if key in state:
                callback.restore(state[key])


def check_callback(callback: Any) -> Callback:
    """The argument, if it is a callback.

    Raises:
        CallbackError: It is not.
    """
    if not isinstance(callback, Callback):
        is_class = isinstance(callback, type)
        bases = (callback if is_class else type(callback)).__mro__
        of_keras = [each.__name__ for each in bases if each.__module__.startswith("keras.")]
        fix = "call the class: ModelSaver()" if is_class else None
        if of_keras:
            ours = [_OF_KERAS[name] for name in of_keras if name in _OF_KERAS]
            fix = next(iter(ours), "write a subclass of towerpack.callbacks.Callback")
        raise CallbackError(
            f"{callback!r} is not a callback{' of Towerpack' if of_keras else ''}.",
            expected="instances of towerpack.callbacks.Callback",
            fix=fix,
        )
    return callback


def _collide(one: Collection[int] | None, other: Collection[int] | None) -> bool:
    if not isinstance(one, range):
        one, other = other, one
    return isinstance(one, range) and (other is None or any(step in one for step in other))
