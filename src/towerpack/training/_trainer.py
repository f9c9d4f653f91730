"""What a training goes through: set up, trace, restore, run, end; and what callbacks see of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError, LayerError, StepError
from towerpack._core.logs import console, get_logger
from towerpack._core.naming import did_you_mean
from towerpack._core.native_log import quiet_start
from towerpack._core.randomness import derive_seed, fresh_seed
from towerpack.callbacks import Callback, Callbacks, CheckNumerics, ProgressBar
from towerpack.callbacks.monitors import (
    ConsoleMonitor,
    JSONLMonitor,
    Monitors,
    TensorBoardMonitor,
    read_stats,
)
from towerpack.checkpoint import Checkpoint
from towerpack.inputs import as_input
from towerpack.model import as_model
from towerpack.nn import global_step
from towerpack.nn._tf_summaries import lost_in
from towerpack.tower import COST, TowerFunction, TowerTrace
from towerpack.training import _snapshot
from towerpack.training._averages import StepAverages
from towerpack.training._clock import EpochClock
from towerpack.training._config import POLICIES, TrainConfig
from towerpack.training._failed_step import step_error
from towerpack.training._hyper import VariableParam
from towerpack.training._init import start_from
from towerpack.training._interrupt import Interrupted, InterruptFlag, StopTraining
from towerpack.training._loop import Loop
from towerpack.training._optimizer import LEARNING_RATE, adapt
from towerpack.training._program import HEAVY, CallResult, Schedule, StepProgram, stateful_draws
from towerpack.training._run_dir import RunDir
from towerpack.training._saves import Saves
from towerpack.training._settings import changes, changes_text, settings_of
from towerpack.training._tables import say_ending, show_variables

_LOG = get_logger(__name__)
_FILL = "queue/fill"


class Trainer:
    """Trains a model as a `TrainConfig` says. Use `SimpleTrainer` or another one by name.

    Attributes:
        global_step: Steps done since the very start.
        epoch: Number of the current epoch, from 1; 0 before the first.
        local_step: Steps done in the current epoch.
        in_epoch: An epoch has begun, and its last triggers are not over.
        steps_per_epoch: Steps in an epoch.
        max_epoch: Number of the last epoch.
        seed: The run's seed.
        run_dir: Where everything of this run is.
        tower: The tower function, with its variables.
        monitors: Takes numbers and pictures; keeps their history.
        given_anew: Hyper-parameters for which the program of a continued run gives a new value.
        complete: True once the last epoch is done.
        was_complete: The run was complete already when it was started.
    """

    def __init__(
        self, config: TrainConfig | None = None, *, devices: Sequence[str | None] = (None,)
    ) -> None:
        self._devices = list(devices)
        self._trained = False
        if config is not None:
            self.configure(config)

    def configure(self, config: TrainConfig) -> None:
        """Say what to train, to a trainer that was made without a configuration.

        Raises:
            ConfigError: It has one already, or the configuration makes no sense.
        """
        if hasattr(self, "config"):
            raise ConfigError(
                f"This {type(self).__name__} has a configuration already.",
                fix=f"{type(self).__name__}() for launch_train_with_config(config, trainer)",
            )
        # What was set after it was made is checked as well: `config.session_init = …`.
        self.config = config = dataclasses.replace(config)
        self.model = as_model(config.model)
        self.source = as_input(config.dataflow if config.data is None else config.data)
        extra = config.extra_callbacks
        usual = [CheckNumerics(), ProgressBar()] if extra is None else list(extra)
        self.callbacks = Callbacks([Callbacks(_as_list(config.callbacks)), *usual])
        self.max_epoch = config.max_epoch
        self.steps_per_epoch = config.steps_per_epoch or self._default_steps(len(self._devices))
        self.global_step = self.epoch = self.local_step = 0
        self.in_epoch = False
        self.phase = "steps"
        self.stopping = False
        self.settled = True
        self.complete = self.was_complete = False
        self.last_nonfinite: list[np.ndarray] | None = None
        self.clock = EpochClock()
        self._interrupt = InterruptFlag()
        self._check_finite = False
        self._saves = Saves(self._capture, lambda name: self.monitors.latest(name))
        self._before_triggers: dict[str, Any] | None = None
        self._last_scalars: dict[str, float] = {}
        self._predictors: dict[tuple[str, ...], Any] = {}
        self._inference_trace: TowerTrace | None = None
        self._hyper_params: dict[str, VariableParam] = {}
        self._hyper_params_known = False
        self._schedules: dict[str, Schedule] = {}
        self._hyper_variables: dict[str, dict[str, tf.Variable]] = {}
        self._settings: dict[str, Any] = {}
        self.given_anew: Collection[str] = ()
        self._ending = "Stopped"

    # ------------------------------------------------------------------ lifecycle

    def train(self) -> None:
        """Train to the last epoch, or until the data or a callback end it.

        Raises:
            SystemExit: SIGTERM (code 143) or Ctrl-C (130) came; the run has been saved and can be
                continued.
            Exception: Whatever failed, in the model, a callback, a feeding thread or on the disk.
        """
        if not hasattr(self, "config"):
            raise ConfigError(
                f"This {type(self).__name__} has no configuration.",
                fix=f"{type(self).__name__}(config).train(), or "
                "launch_train_with_config(config, trainer)",
            )
        if self._trained:
            raise ConfigError(
                "This trainer has been used.", fix="make a new one to train again or to continue"
            )
        self._trained = True
        console()
        try:
            with ExitStack() as stack:
                stack.enter_context(self._interrupt.listening())
                with quiet_start():
                    tf.config.list_logical_devices()
                self._run(stack)
            # It may have come after the last step: the run is complete, but the program is to end.
            self._interrupt.check()
        except Interrupted:
            raise SystemExit(self._interrupt.exit_code) from None

    def _run(self, stack: ExitStack) -> None:
        on_existing = self.config.on_existing
        if on_existing is None:
            on_existing = "resume" if self.config.resume == "auto" else "new"
        directory = stack.enter_context(RunDir(self.config.run_dir, on_existing=on_existing))
        self.run_dir = directory.path
        _LOG.info(
            "The run is in %s: %d epochs of %d steps.",
            self.run_dir, self.max_epoch, self.steps_per_epoch,
        )  # fmt: skip
        checkpoint = _snapshot.find_checkpoint(self.run_dir, self.config.resume)
        if checkpoint is None and self.config.resume == "auto":
            _warn_of_lost_steps(directory)
        self.seed = self._choose_seed(directory, checkpoint)
        if self.config.deterministic:
            tf.config.experimental.enable_op_determinism()
        tf.random.set_seed(derive_seed(self.seed, "tensorflow") >> 32)
        directory.record_start(
            seed=self.seed,
            config=_described(self.config),
            resumed_at=None if checkpoint is None else checkpoint.step,
        )
        self.monitors = Monitors(self._make_monitors(directory))
        stack.callback(self.monitors.close)
        self._step_variable = stack.enter_context(global_step())
        self._step_variable.assign(0)
        # Nothing has happened yet that would have to be saved.
        with self._interrupt.at_once():
            self._build(resumed=checkpoint is not None)
        store = self._saves.open(directory.checkpoints)
        stack.push(self._say_ending)
        stack.callback(store.close)
        data_state = None if checkpoint is None else self._restore(checkpoint)
        # What lies in the directory after this point belongs to another course of events.
        store.abandon_after(self.global_step if checkpoint is not None else -1)
        self.monitors.resume(self.global_step)
        if self.epoch >= self.max_epoch and not self.in_epoch and self.phase == "steps":
            self.complete = self.was_complete = True
            return
        self.source.start(data_state)
        stack.callback(self.source.stop)
        failure: BaseException | None = None
        try:
            self._train_loop()
        except BaseException as error:  # noqa: BLE001 - raised below
            failure = error
        failure = self._after_train(failure)
        if failure is not None:
            raise failure

    def _train_loop(self) -> None:
        try:
            self._run_loop()
            self.check_interrupt()
            if self._check_finite:
                _snapshot.check_no_nan(self.get_weights(), self.global_step)
            self._saves.at_the_end(self._place())
            self.complete = self.epoch >= self.max_epoch and not self.in_epoch
        except Interrupted:
            self._saves.at_last()
            _LOG.warning("Saved at step %d in %s.", self.global_step, self.run_dir)
            raise
        except Exception as error:
            if self.settled:
                self._saves.before_failure(error, self._place())
            raise

    def _run_loop(self) -> None:
        try:
            Loop(self).run()
        except StopTraining as reason:
            self._ending = f"Stopped ({reason})" if str(reason) else "Stopped"

    def _say_ending(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is None:
            say_ending(
                "Complete" if self.complete else self._ending,
                epoch=self.epoch,
                max_epoch=self.max_epoch,
                step=self.global_step,
                run_dir=self.run_dir,
            )

    def _after_train(self, failure: BaseException | None) -> BaseException | None:
        """Each callback gets its turn, whatever the others do; gives what ended the training."""
        for callback in self.callbacks.callbacks:
            try:
                callback.after_train()
            except Exception as error:  # noqa: BLE001 - raised by the caller, or logged
                if failure is None:
                    failure = error
                else:
                    _LOG.exception("%r failed too, after the training:", callback)
        return failure

    # ------------------------------------------------------------------ building

    def _build(self, *, resumed: bool) -> None:
        config = self.config
        self.tower = TowerFunction(
            self.model.build_graph,
            self.model.inputs(),
            seed=self.seed,
            dtype_policy=POLICIES[config.precision],
        )
        self.source.setup(self.tower.specs, seed=self.seed, replicas=len(self._devices))
        self.callbacks.setup(self)
        trace = self.tower.trace(is_training=True)
        for text in trace.unused_regularizers():
            _LOG.warning(
                "%s was computed but is not part of the cost: add it, or take it out.", text
            )
        lost = lost_in(trace.result.outputs[COST].graph)
        if lost:
            raise LayerError(
                f"tf.summary in a tower reports nothing: {', '.join(lost)}.",
                expected="summaries for the monitors",
                fix="from towerpack.nn import summary; summary.scalar(name, value), .histogram and "
                ".image, not inside of a tf.function or a branch; or make a writer of your own the "
                "default before train(): tf.summary.create_file_writer(…).set_as_default()",
            )
        draws = stateful_draws(trace)
        if draws:
            _LOG.warning(
                "The model draws random numbers by %s, whose state no checkpoint can hold: a run "
                "that is continued draws others. Use layers by name, Keras layers, or "
                "tf.random.stateless_* with get_current_tower_context().step_seed(name).",
                ", ".join(draws),
            )
        # Before the optimizer is built: some keep copies of the weights that they start with.
        start_from(config.init, self.tower.store.named_variables(), resumed=resumed)
        summaries = trace.result.summaries
        self._summary_kinds = {s.name: s.kind for s in summaries}
        self._averages = StepAverages(
            {s.name: s.decay for s in summaries if s.kind == "moving_average"}
        )
        optimizer = self.model.optimizer() if config.optimizer is None else config.optimizer
        self._optimizer = adapt(optimizer, scale_loss=config.precision == "float16")
        used = set(trace.used_names())
        trainable = {n: v for n, v in self.tower.store.trainable().items() if n in used}
        show_variables(self.tower.store.named_variables(), trainable)
        self._optimizer.build(
            trainable, saved_elsewhere=self.tower.store.named_variables().values()
        )
        self._find_hyper_params()
        self._check_names(trace)
        self._settings = {
            **settings_of(self.config, self.source, trace, optimizer),
            "seed": self.seed,
            "steps_per_epoch": self.steps_per_epoch,
            "replicas": len(self._devices),
            **{name: param.get() for name, param in self._hyper_params.items()},
        }
        self.program = StepProgram(
            tower=self.tower,
            trace=trace,
            source=self.source,
            optimizer=self._optimizer,
            trainable=trainable,
            global_step=self._step_variable,
            fetches=[name for c in self.callbacks.callbacks for name in c.fetches],
            schedules=[(self.hyper_param(n).variable, f) for n, f in self._schedules.items()],
            devices=self._devices,
            check_finite=self._check_finite,
            xla=config.xla,
        )
        self.program.compile()

    def _check_names(self, trace: TowerTrace) -> None:
        """Each monitored name must have one meaning, and be put where a callback needs it."""
        own = [COST, *EpochClock.NAMES]
        if LEARNING_RATE in self.hyper_param_names():
            own.append(LEARNING_RATE)
        if self.source.fill() is not None:
            own.append(_FILL)
        numbers = [s for s in trace.result.summaries if s.kind not in HEAVY]
        for s in numbers:
            if s.name in own and s.value is not trace.result.cost:
                raise LayerError(
                    f"summary.{s.kind}('{s.name}', …) has the name of a number that every trainer "
                    "reports.",
                    expected=f"another name than {own}",
                    fix=f"summary.{s.kind}('my_{s.name}', …)",
                )
        self.callbacks.check_order(
            list(dict.fromkeys([*own, *self.hyper_param_names(), *(s.name for s in numbers)]))
        )

    def _make_monitors(self, directory: RunDir) -> list[Any]:
        if self.config.monitors is not None:
            return list(self.config.monitors)
        return [
            JSONLMonitor(directory.stats),
            ConsoleMonitor(exclude=["^time/"]),
            TensorBoardMonitor(directory.events),
        ]

    def _default_steps(self, replicas: int) -> int:
        try:
            steps = len(self.source) // replicas
        except TypeError:
            raise ConfigError(
                "How long is an epoch? The data have no known length.",
                expected="steps_per_epoch=, or data with len()",
                fix="TrainConfig(steps_per_epoch=1000, …)",
            ) from None
        if steps < 1:
            raise ConfigError(
                "One pass over the data does not make a single step.",
                got=f"{len(self.source)} batches for {replicas} replica(s)",
                fix="a smaller batch size, or BatchData(…, remainder=True)",
            )
        return steps

    def _choose_seed(self, directory: RunDir, checkpoint: Checkpoint | None) -> int:
        if self.config.seed is not None:
            return self.config.seed
        if checkpoint is not None:
            return int(checkpoint.state["seed"])
        recorded = directory.recorded().get("seed")
        if isinstance(recorded, int):
            return recorded
        seed = fresh_seed()
        _LOG.info("seed=%d (drawn, since none was given)", seed)
        return seed

    # ------------------------------------------------------------------ for the loop

    def begin_epoch(self) -> None:
        """The next epoch's first step comes next."""
        self.epoch += 1
        self.local_step = 0
        self.in_epoch = True
        self._averages.begin_epoch()
        self.clock.reset()

    def advance(self, steps: int) -> None:
        """Steps have been applied."""
        self.global_step += steps
        self.local_step += steps

    def report_steps(self, result: CallResult) -> None:
        """Take in what the steps of one call reported."""
        self._averages.add(result.outputs[COST], result.summaries)
        if result.steps:
            self._last_scalars = {n: float(v[-1]) for n, v in result.summaries.items()}
        step = self.global_step + result.steps
        for name, value in result.heavy.items():
            if self._summary_kinds[name] == "histogram":
                self.monitors.put_histogram(name, value, step)
            else:
                for i, picture in enumerate(value):
                    self.monitors.put_image(f"{name}/{i}", picture, step)

    def begin_triggers(self, phase: str) -> None:
        """Callbacks will be triggered, which may take long.

        What they are about to change is kept until they are done: a run that is interrupted among
        them is saved as of now, and goes through all of them again when it is continued.

        Args:
            phase: 'step triggers' after a step, 'triggers' after an epoch.
        """
        self._before_triggers = {
            "callbacks": self.callbacks.state(),
            **{group: _snapshot.arrays_of(v) for group, v in self._hyper_variables.items()},
        }
        self.phase = phase
        self.settled = True
        self.monitors.at(self.global_step, self.epoch)

    def end_triggers(self) -> None:
        """All callbacks have been triggered."""
        self.settled = False
        self.phase = "steps"
        self._before_triggers = None

    def put_epoch_numbers(self) -> None:
        """Hand the monitors what the epoch has given."""
        for name, value in self._epoch_numbers().items():
            self.monitors.put_scalar(name, value)

    def end_epoch(self) -> None:
        """The epoch is over."""
        self.in_epoch = False
        self.monitors.end_epoch()

    def _epoch_numbers(self) -> dict[str, float]:
        numbers = self._averages.end_epoch()
        for name, value in self._last_scalars.items():
            numbers.setdefault(name, value)
        for name in self.hyper_param_names():
            numbers.setdefault(name, self.hyper_param(name).get())
        numbers.update(self._optimizer.scheduled())
        fill = self.source.fill()
        if fill is not None:
            numbers[_FILL] = fill
        return {**numbers, **self.clock.report()}

    def say_data_ended(self) -> None:
        """The source has no more batches."""
        self._ending = "The data ended"

    # ------------------------------------------------------------------ for callbacks

    def save(self, *, keep: int | None = None, best: str | None = None) -> None:
        """Have a checkpoint written once all callbacks of this moment have acted.

        Args:
            keep: How many ordinary checkpoints to keep; None for all.
            best: Keep it as the best by this monitored name instead.
        """
        self._saves.want(keep=keep, best=best)

    def will_save(self) -> None:
        """Save the end of this run, even if no save is ever due."""
        self._saves.expect()

    def hyper_param(self, name: str) -> VariableParam:
        """A number that the running graph reads: the learning rate, or a scalar variable.

        Raises:
            ConfigError: There is none of this name.
        """
        known = self._hyper_params
        if not self._hyper_params_known:
            raise ConfigError(
                f"Whether there is a hyper-parameter '{name}' is not known before the model is "
                "built.",
                fix="ask in before_train or later, or use schedule() during setup",
            )
        if name not in known:
            raise ConfigError(
                f"There is no hyper-parameter '{name}' that can be changed.",
                expected="'learning_rate' (not a schedule), or a scalar tf.Variable of the model",
                fix=did_you_mean(name, known)
                if known
                else "give the optimizer a number as its learning rate; keep other numbers in a "
                "tf.Variable(…, trainable=False) of the model",
            )
        return known[name]

    def schedule(self, name: str, schedule: Schedule) -> None:
        """During setup: have a hyper-parameter set after each step, without ending the call.

        Args:
            name: Of the hyper-parameter.
            schedule: Takes the number of steps done; gives the value for the next step, or None to
                leave it as it is. Asked for several steps ahead, so the number must be all that it
                depends on. Of two for one name, the later one decides first.

        Raises:
            ConfigError: Setup is over.
        """
        if self._hyper_params_known:
            raise ConfigError(
                f"The schedule of '{name}' comes too late: the loop is compiled.",
                fix="call trainer.schedule in the callback's setup(self, trainer)",
            )
        earlier = self._schedules.get(name)

        def latest(step: int) -> float | None:
            value = schedule(step)
            return value if value is not None or earlier is None else earlier(step)

        self._schedules[name] = latest

    def hyper_param_names(self) -> list[str]:
        """Names that `hyper_param` knows."""
        return list(self._hyper_params)

    def predict_function(
        self, outputs: Sequence[str]
    ) -> tuple[Callable[..., list[Any]], list[str]]:
        """The tower in inference mode, on the current weights, cut to some outputs.

        Returns:
            A function over arrays that gives tensors, and the names of its arguments in order.

        Raises:
            LayerError: There is no output of some name.
        """
        key = tuple(outputs)
        if key not in self._predictors:
            self._predictors[key] = self._trace_inference().function(outputs)
        return self._predictors[key]

    def _trace_inference(self) -> TowerTrace:
        if self._inference_trace is None:
            self._inference_trace = self.tower.trace(is_training=False)
        return self._inference_trace

    def stop_on_nonfinite(self) -> None:
        """End a call of several steps at a cost that is not finite; do not apply that step."""
        self._check_finite = True

    def nonfinite(self) -> dict[str, Any] | None:
        """The inputs of the step whose cost was not finite, by name, if there was one."""
        return None if self.last_nonfinite is None else self._named(self.last_nonfinite)

    def _named(self, inputs: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """The inputs of one step, by name."""
        names = [
            name if replica == 0 else f"{name}-replica{replica}"
            for replica in range(len(self._devices))
            for name in self.tower.input_names
        ]
        return dict(zip(names, inputs, strict=True))

    def failed_step(self, error: tf.errors.OpError) -> StepError:
        """Describe a call that TensorFlow has given up; its first steps may have been applied."""
        done = int(self._step_variable.numpy()) - self.global_step
        return step_error(
            error,
            self.global_step + done + 1,
            self.run_dir,
            lambda: self.source.read_again(done),
            self._named,
        )

    def request_stop(self) -> None:
        """End training normally after the current step or epoch's triggers."""
        self.stopping = True

    def check_interrupt(self) -> None:
        """Leave the run here if SIGTERM or Ctrl-C has come.

        Inside the hooks of single steps it does nothing: they are as good as done. Where it leaves
        a callback's `trigger`, that is called again when the run is continued.
        """
        if self.settled:
            self._interrupt.check()

    def get_weights(self) -> dict[str, np.ndarray]:
        """The model's variables by name, as copies.

        Raises:
            ConfigError: The trainer has not been started.
        """
        if not self._trained:
            raise ConfigError("A trainer has no weights before train().")
        return _snapshot.arrays_of(self.tower.store.named_variables())

    def _find_hyper_params(self) -> None:
        # Once: to look through the model for its variables takes as long as a small step.
        model = self.tower.store.named_variables()
        own = {
            name: VariableParam(name, variable)
            for name, variable in model.items()
            if variable.shape.rank == 0 and not variable.trainable and variable.dtype.is_floating
        }
        self._hyper_params = {**own, **self._optimizer.hyper_params()}
        self._hyper_params_known = True
        wanted = {id(p.variable) for p in self._hyper_params.values()}
        groups = {"model": model, "optimizer": self._optimizer.variables()}
        self._hyper_variables = {
            group: {name: v for name, v in variables.items() if id(v) in wanted}
            for group, variables in groups.items()
        }

    # ------------------------------------------------------------------ checkpoints

    def write_saves(self) -> None:
        """Write what callbacks have asked for since the last time."""
        self._saves.write()

    def _place(self) -> tuple[int, bool, str]:
        return self.global_step, self.in_epoch, self.phase

    def _capture(self) -> _snapshot.Snapshot:
        self.monitors.flush()
        optimizer = _snapshot.arrays_of(self._optimizer.variables())
        model = self.get_weights()
        if self._check_finite:
            _snapshot.check_no_nan(model, self.global_step)
        callbacks = self.callbacks.state()
        if self._before_triggers is not None:
            callbacks = self._before_triggers["callbacks"]
            model.update(self._before_triggers["model"])
            optimizer.update(self._before_triggers["optimizer"])
        state = {
            "seed": self.seed,
            "step": self.global_step,
            "epoch": self.epoch,
            "local_step": self.local_step,
            "in_epoch": self.in_epoch,
            "phase": self.phase,
            "averages": self._averages.state(),
            "scalars": self._last_scalars,
            "data": self.source.state(),
            "callbacks": callbacks,
            "settings": self._settings,
        }
        tensors = {"model": model, "optimizer": optimizer}
        return _snapshot.Snapshot(self.global_step, self._place(), tensors, state)

    def _restore(self, checkpoint: Checkpoint) -> Any:
        """Take a checkpoint over; gives the data's state."""
        state = checkpoint.state
        where = str(checkpoint.path)
        model = self.tower.store.named_variables()
        if not checkpoint.model.keys() <= model.keys():
            # Evaluation may have made variables that training does not have.
            self._trace_inference()
            model = self.tower.store.named_variables()
        _snapshot.assign(model, checkpoint.model, f"the model in {where}")
        optimizer = self._optimizer.variables()
        _snapshot.assign(optimizer, checkpoint.optimizer, f"the optimizer in {where}")
        self.global_step = int(state["step"])
        self._step_variable.assign(self.global_step)
        self.epoch = int(state["epoch"])
        self.local_step = int(state["local_step"])
        self.in_epoch = bool(state["in_epoch"])
        self.phase = str(state["phase"])
        self._averages.restore(state["averages"])
        self._last_scalars = dict(state["scalars"])
        self.callbacks.restore(state["callbacks"])
        self._saves.resumed_from(checkpoint.path, self._place())
        _LOG.info("Resumed at step %d, epoch %d, from %s.", self.global_step, self.epoch, where)
        self._take_new_settings(state["settings"])
        return state["data"]

    def _take_new_settings(self, old: Mapping[str, Any]) -> None:
        """Tell what the program asks for now and did not before; take its hyper-parameters."""
        changed = changes(old, self._settings)
        params = {
            c.name: self._hyper_params[c.name] for c in changed if c.name in self._hyper_params
        }
        self.given_anew = frozenset(params)
        if changed:
            _LOG.warning(
                "Settings that differ from those of the run that is continued:\n%s",
                changes_text(changed),
            )
        for name, param in params.items():
            param.set(self._settings[name])


def _warn_of_lost_steps(directory: RunDir) -> None:
    records = read_stats(directory.stats) if directory.stats.exists() else []
    if records:
        _LOG.warning(
            "An earlier start in %s came to step %d, but there is no checkpoint of it (was there a "
            "ModelSaver? were checkpoints deleted?): this one begins at step 0.",
            directory.path,
            records[-1].step,
        )


def _as_list(callbacks: Sequence[Callback] | Callbacks) -> list[Callback]:
    return [callbacks] if isinstance(callbacks, Callbacks) else list(callbacks)


def _described(config: TrainConfig) -> dict[str, Any]:
    return {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
