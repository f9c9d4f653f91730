"""The parts of a run, made from its configuration and joined."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack.callbacks import Callbacks
from towerpack.callbacks.monitors import Monitors
from towerpack.inputs import InputSource
from towerpack.model import ModelDesc
from towerpack.tower import TowerFunction
from towerpack.training.config import POLICIES, TrainConfig
from towerpack.training.distribution.base import Distribution
from towerpack.training.interrupt import InterruptFlag
from towerpack.training.loop.agreement import Agreement
from towerpack.training.loop.executor import check_outputs
from towerpack.training.loop.failed_step import step_error
from towerpack.training.loop.loop import Loop
from towerpack.training.optim.hyper_params import Groups, HyperParams
from towerpack.training.optim.learning_rate import call_optimizer
from towerpack.training.run.context import RunContext
from towerpack.training.run.practice import overfitted
from towerpack.training.state.checkpoint_contents import Contents
from towerpack.training.state.ledger import Ledger
from towerpack.training.state.report import show_variables
from towerpack.training.state.run_state import RunState
from towerpack.training.state.saver import Saves
from towerpack.training.state.settings import FORMAT, common_settings, settings_of
from towerpack.training.state.step_metrics import FILL, Numbers, names_of_numbers
from towerpack.training.steps.graph_checks import check_graph
from towerpack.training.steps.step import StepSetup, TrainStep
from towerpack.training.weights.smart_init import start_from

# Before the names of variables as they are trained, if the checkpoint's model has others.
TRAINED = "trained/"
# The other processes of a run wait meanwhile.
_READ_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Materials:
    """What a run is assembled from, as its configuration says.

    Attributes:
        config: What to train.
        model: The model.
        source: Where data come from.
        callbacks: All of them.
        step: What one step is.
        distribution: Where its replicas run.
        executor: Makes what runs many of them in one call: `Executor`, or what has its face.
        state: Where the run stands.
        hyper_params: What can be changed; found while assembling.
        saves: Writes checkpoints.
        interrupt: Remembers signals.
        agreement: With the other processes of the run.
        watch: Called several times a second; raises what else is to end the run.
    """

    config: TrainConfig
    model: ModelDesc
    source: InputSource
    callbacks: Callbacks
    step: TrainStep
    distribution: Distribution
    executor: Callable[..., Any]
    state: RunState
    hyper_params: HyperParams
    saves: Saves
    interrupt: InterruptFlag
    agreement: Agreement
    watch: Callable[[], None]


@dataclass(frozen=True)
class Opened:
    """What is known once the directory of a run is open.

    Attributes:
        run_dir: Where everything of the run is.
        seed: The run's seed.
        monitors: Receive values.
        ledger: Where the time goes.
        step_variable: The global step in the graph.
        check_interrupt: Leaves the run where it is to end early.
    """

    run_dir: Path
    seed: int
    monitors: Monitors
    ledger: Ledger
    step_variable: tf.Variable
    check_interrupt: Callable[[], None]


class Assembly:
    """A run, ready to be restored and trained.

    Args:
        of: The materials.
        at: Where it is, and how it is told of.
        resumed: The run goes on from a checkpoint.

    Attributes:
        tower: The tower function, with its variables.
        context: What callbacks see.
        setup: The step's optimizers.
        contents: What checkpoints hold.
        loop: Runs the epochs.
        settings: What it was given, by name, as JSON values.
    """

    def __init__(self, of: Materials, at: Opened, *, resumed: bool) -> None:
        self._of = of
        self._at = at
        config, callbacks = of.config, of.callbacks
        self.tower = TowerFunction(
            of.model.build_graph,
            of.model.inputs(),
            seed=at.seed,
            dtype_policy=POLICIES[config.precision],
            frozen=config.not_to_change,
        )
        trace = self.tower.trace(is_training=True)
        check_graph(trace)
        of.distribution.adopt(self.tower, trace)
        replicas = of.distribution.local_replicas
        of.source.setup(self.tower.specs, seed=at.seed, replicas=replicas)
        self.context = RunContext(
            tower=self.tower,
            monitors=at.monitors,
            run_dir=at.run_dir,
            seed=at.seed,
            replicas=replicas,
            alone=of.distribution.team.size == 1,
            state=of.state,
            hyper_params=of.hyper_params,
            saves=of.saves,
            check_interrupt=at.check_interrupt,
            fast_dev_run=int(config.fast_dev_run),
            overfitted=functools.partial(overfitted, config, at.seed),
        )
        callbacks.setup(self.context)
        with of.distribution.scope():
            optimizer = config.optimizer
            if optimizer is None:
                optimizer = call_optimizer(of.model.optimizer, at.step_variable)
        # Before weights are loaded: values of variables are compared as the program gives them.
        # Before the optimizer is built: that turns a schedule into a variable.
        settings = settings_of(config, of.source, callbacks, trace, optimizer, of.step, self.tower)
        # Before the optimizer is built: some keep copies of the weights that they start with.
        start_from(config.init, self.tower.store.named_variables(), resumed=resumed)
        with of.distribution.scope():
            scale_loss = config.precision == "float16"
            self.setup = StepSetup(
                self.tower,
                trace,
                optimizer,
                scale_loss=scale_loss,
                frozen=config.frozen,
                only=config.trainable,
            )
            of.step.build(self.setup)
        self.setup.check(checks_finite=self.context.checks_finite)
        self.context.optimizers = self.setup.optimizers
        show_variables(self.tower.store.named_variables(), self.setup.trained, self.setup.frozen)
        of.hyper_params.find(self._variables(), self.setup.optimizers)
        numbers = Numbers(trace.result.summaries, at.monitors, self._further_numbers, at.ledger)
        callbacks.check_order(names_of_numbers(trace.result, [*self._further_numbers()]))
        for callback in callbacks.callbacks:
            check_outputs(repr(callback), callback.fetches, trace.result.outputs)
        executor = of.executor(
            step=of.step,
            trained=self.setup.trained,
            distribution=of.distribution,
            tower=self.tower,
            trace=trace,
            source=of.source,
            global_step=at.step_variable,
            fetches=[name for c in callbacks.callbacks for name in c.fetches],
            schedules=of.hyper_params.schedules(),
            check_finite=self.context.checks_finite,
            xla=config.xla,
            eager=config.eager,
        )
        executor.compile()
        settings = {
            **settings,
            "seed": at.seed,
            "steps_per_epoch": of.state.steps_per_epoch,
            "replicas": of.distribution.replicas,
            "trained variables": len(self.setup.trained),
            **of.hyper_params.values(),
        }
        of.agreement.compare(common_settings(config, of.source, settings))
        # The operations of a model are many, and tell people little.
        told = {n: v for n, v in settings.items() if not n.startswith("model.")}
        self.settings = {"max_epoch": of.state.max_epoch, **told}
        shown = {n: v for n, v in self.settings.items() if not n.startswith(("callback ", FORMAT))}
        at.monitors.put_settings(shown)
        graph: Any = trace.graph
        at.monitors.put_graph(lambda: graph.as_graph_def().SerializeToString())
        self.contents = Contents(
            state=of.state,
            numbers=numbers,
            callbacks=callbacks,
            source=of.source,
            hyper_params=of.hyper_params,
            groups=self._groups,
            settings=settings,
            check_nan=self.context.checks_finite,
            tells=of.distribution.team.is_chief,
            flush=at.monitors.flush,
        )
        self.loop = Loop(
            executor,
            of.source,
            callbacks.callbacks,
            of.state,
            of.saves,
            numbers=numbers,
            monitors=at.monitors,
            poll=at.check_interrupt,
            explain=self._explain,
            agreement=of.agreement,
        )

    def _variables(self) -> dict[str, dict[str, tf.Variable]]:
        slots = {name: o.variables() for name, o in self.setup.optimizers.items()}
        return {"model": self.tower.store.named_variables(), **slots}

    def _groups(self) -> Groups:
        """Variables as checkpoints hold them: the model's as the optimizer would leave them."""
        groups = self._variables()
        model = groups["model"]
        for group, optimizer in self.setup.optimizers.items():
            slots = groups[group]
            names = {id(variable): name for name, variable in slots.items()}
            for name, final in optimizer.final_values().items():
                slots[f"{TRAINED}{name}"] = model[name]
                model[name] = slots.pop(names[id(final)])
        return groups

    def finalize(self, failure: type[BaseException] | None, *_: object) -> None:
        """Give trained variables the values that their optimizer ends with, as Keras's `fit`."""
        if failure is None:
            model = self.tower.store.named_variables()
            for name, final in self.context.final_values().items():
                model[name].assign(final.read_value())

    def _further_numbers(self) -> Mapping[str, float]:
        fill = self._of.source.fill()
        filled = {} if fill is None else {FILL: fill}
        params = self._of.hyper_params
        return {**params.values(), **params.scheduled(), **filled}

    def _explain(self, error: tf.errors.OpError) -> Exception:
        """Describe a call that TensorFlow has given up; its first steps may have been applied."""
        team = self._of.distribution.team
        lost = team.lost(error)
        if lost is not None:
            return lost
        done = int(self._at.step_variable.numpy()) - self._of.state.step
        number = self._of.state.step + done + 1

        def read_again() -> dict[str, np.ndarray] | None:
            inputs = self._of.source.read_again(done)
            return None if inputs is None else self.context.named(inputs)

        path = self._at.run_dir / f"failed-step-{number:08d}.npz"
        if team.size == 1:
            return step_error(error, f"Step {number}", path, read_again)
        what = f"Step {number} of {team.name(team.index)}"
        return step_error(error, what, path, read_again, seconds=_READ_S)
