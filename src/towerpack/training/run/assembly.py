"""Assembly of a run: model, optimizers, step runner, checkpoint contents and loop."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack.callbacks.monitors import Monitors
from towerpack.inputs import InputSource
from towerpack.tower import TowerFunction, TowerTrace
from towerpack.training.config import POLICIES
from towerpack.training.loop.executor import StepParts, check_outputs
from towerpack.training.loop.loop import Loop
from towerpack.training.loop.tensorflow_error import step_error
from towerpack.training.optim.hyper_params import Groups, HyperParams
from towerpack.training.optim.learning_rate import call_optimizer
from towerpack.training.run.context import RunContext
from towerpack.training.run.opening import OpenRun
from towerpack.training.run.parts import RunParts
from towerpack.training.state.checkpoint_contents import Contents
from towerpack.training.state.report import show_variables
from towerpack.training.state.settings import FORMAT, Settings, common_settings, settings_of
from towerpack.training.state.skipped_steps import SkippedSteps
from towerpack.training.state.step_metrics import FILL, Numbers, names_of_numbers
from towerpack.training.steps.graph_checks import check_graph
from towerpack.training.steps.step import StepSetup
from towerpack.training.steps.step_runner import StepRunner
from towerpack.training.weights.match_by_name import start_from

# Prefix for trained variables whose values in the checkpoint's model are replaced.
TRAINED = "trained/"
# Seconds to wait for a failed batch; the other processes of a run wait meanwhile.
_READ_S = 5.0


@dataclass(frozen=True)
class AssembledRun:
    """Run that is ready to be restored and trained. `settings` are shown to users."""

    tower: TowerFunction
    context: RunContext
    setup: StepSetup
    contents: Contents
    loop: Loop
    settings: Settings

    @property
    def data_settings(self) -> Settings:
        """Settings by which the data are recognized."""
        return {n: v for n, v in self.settings.items() if n.partition(".")[0] == "data"}

    def finalize(self, failure: type[BaseException] | None, *_: object) -> None:
        """Assign the optimizers' final values to trained variables, as Keras's `fit` does."""
        if failure is None:
            model = self.tower.store.named_variables()
            for name, final in self.context.final_values().items():
                model[name].assign(final.read_value())


def assemble(parts: RunParts, run: OpenRun) -> AssembledRun:
    config, source, callbacks = parts.config, parts.source, parts.callbacks
    tower, trace = _build_tower(parts, run)
    source.setup(tower.specs, seed=run.seed, replicas=parts.distribution.local_replicas)
    context = RunContext(parts, run, tower)
    callbacks.setup(context)
    optimizer = _make_optimizer(parts, run.step_variable)
    # Read settings before weights are loaded, because values of variables are settings, and before
    # the optimizer is built, because that turns a schedule into a variable.
    settings = settings_of(config, source, callbacks, trace, optimizer, parts.step, tower)
    # Load weights before the optimizer is built, because some optimizers copy them.
    start_from(config.init, tower.store.named_variables(), resumed=run.checkpoint is not None)
    setup = _build_step(parts, tower, trace, optimizer, checks_finite=context.checks_finite)
    context.optimizers = setup.optimizers
    show_variables(tower.store.named_variables(), setup.trained, setup.frozen)
    parts.hyper_params.find(_variables(tower, setup), setup.optimizers)
    further = functools.partial(_further_numbers, source, parts.hyper_params)
    numbers = Numbers(trace.result.summaries, run.monitors, further, run.ledger, run.costs)
    callbacks.check_order(names_of_numbers(trace.result, [*further()]))
    runner = _compile_step(parts, run, tower, trace, setup, check_finite=context.checks_finite)
    settings = _with_numbers(settings, parts, run.seed, len(setup.trained))
    parts.agreement.compare(common_settings(config, source, settings))
    shown = _show_settings(settings, parts, run.monitors, trace)
    contents = Contents(
        state=parts.state,
        numbers=numbers,
        callbacks=callbacks,
        source=source,
        hyper_params=parts.hyper_params,
        groups=functools.partial(_checkpoint_groups, tower, setup),
        settings=settings,
        check_nan=context.checks_finite,
        warns=parts.distribution.team.is_chief,
        flush=run.flush,
    )
    loop = Loop(
        runner,
        source,
        callbacks.callbacks,
        parts.state,
        parts.saves,
        numbers=numbers,
        monitors=run.monitors,
        poll=run.check_interrupt,
        explain=functools.partial(_explain, parts, run, context),
        agreement=parts.agreement,
        skipped=SkippedSteps(
            config.skip_steps,
            source,
            parts.distribution.local_replicas,
            run.step_variable,
            parts.hyper_params.schedules(),
            setup.optimizers.values(),
        ),
    )
    return AssembledRun(tower, context, setup, contents, loop, shown)


def _build_tower(parts: RunParts, run: OpenRun) -> tuple[TowerFunction, TowerTrace]:
    tower = TowerFunction(
        parts.model.build_graph,
        parts.model.inputs(),
        seed=run.seed,
        dtype_policy=POLICIES[parts.config.precision],
        frozen=parts.config.frozen_patterns,
    )
    tower.store.resumed = run.checkpoint is not None
    trace = tower.trace(is_training=True)
    check_graph(trace)
    parts.distribution.adopt(tower, trace)
    return tower, trace


def _make_optimizer(parts: RunParts, step_variable: tf.Variable) -> Any:
    with parts.distribution.scope():
        if parts.config.optimizer is None:
            return call_optimizer(parts.model.optimizer, step_variable)
        return parts.config.optimizer


def _build_step(
    parts: RunParts, tower: TowerFunction, trace: TowerTrace, optimizer: Any, *, checks_finite: bool
) -> StepSetup:
    config = parts.config
    scale, frozen, only = config.precision == "float16", config.frozen, config.trainable
    with parts.distribution.scope():
        setup = StepSetup(tower, trace, optimizer, scale_loss=scale, frozen=frozen, only=only)
        parts.step.build(setup)
    setup.check(checks_finite=checks_finite)
    return setup


def _compile_step(
    parts: RunParts,
    run: OpenRun,
    tower: TowerFunction,
    trace: TowerTrace,
    setup: StepSetup,
    *,
    check_finite: bool,
) -> StepRunner:
    callbacks = parts.callbacks.callbacks
    for callback in callbacks:
        check_outputs(repr(callback), callback.fetches, trace.result.outputs)
    runner = parts.make_runner(
        StepParts(
            step=parts.step,
            trained=setup.trained,
            distribution=parts.distribution,
            tower=tower,
            trace=trace,
            source=parts.source,
            global_step=run.step_variable,
            fetches=[name for callback in callbacks for name in callback.fetches],
            schedules=parts.hyper_params.schedules(),
            check_finite=check_finite,
            xla=parts.config.xla,
            eager=parts.config.eager,
        )
    )
    runner.compile()
    return runner


def _with_numbers(settings: Settings, parts: RunParts, seed: int, trained: int) -> Settings:
    return {
        **settings,
        "seed": seed,
        "steps_per_epoch": parts.state.steps_per_epoch,
        "replicas": parts.batches or parts.distribution.replicas,
        "trained variables": trained,
        **parts.hyper_params.values(),
    }


def _show_settings(
    settings: Settings, parts: RunParts, monitors: Monitors, trace: TowerTrace
) -> Settings:
    # Users do not need the counts of a model's operations.
    reported = {n: v for n, v in settings.items() if not n.startswith("model.")}
    reported = {"max_epoch": parts.state.max_epoch, **reported}
    hidden = ("callback ", FORMAT)
    monitors.put_settings({n: v for n, v in reported.items() if not n.startswith(hidden)})
    graph: Any = trace.graph
    monitors.put_graph(lambda: graph.as_graph_def().SerializeToString())
    return reported


def _variables(tower: TowerFunction, setup: StepSetup) -> dict[str, dict[str, tf.Variable]]:
    slots = {name: o.variables() for name, o in setup.optimizers.items()}
    return {"model": tower.store.named_variables(), **slots}


def _checkpoint_groups(tower: TowerFunction, setup: StepSetup) -> Groups:
    """Return the variables of a checkpoint by group. The model has the optimizers' final values."""
    groups = _variables(tower, setup)
    model = groups["model"]
    for group, optimizer in setup.optimizers.items():
        slots = groups[group]
        names = {id(variable): name for name, variable in slots.items()}
        for name, final in optimizer.final_values().items():
            slots[f"{TRAINED}{name}"] = model[name]
            model[name] = slots.pop(names[id(final)])
    return groups


def _further_numbers(source: InputSource, params: HyperParams) -> Mapping[str, float]:
    fill = source.fill()
    return {**params.values(), **params.scheduled(), **({} if fill is None else {FILL: fill})}


def _explain(
    parts: RunParts, run: OpenRun, context: RunContext, error: tf.errors.OpError
) -> Exception:
    """Return an error that names the failed step, for a TensorFlow error of several steps."""
    team = parts.distribution.team
    lost = team.lost(error)
    if lost is not None:
        return lost
    done = int(run.step_variable.numpy()) - parts.state.step
    number = parts.state.step + done + 1

    def read_again() -> dict[str, np.ndarray] | None:
        inputs = parts.source.read_again(done)
        return None if inputs is None else context.named(inputs)

    path = run.run_dir / f"failed-step-{number:08d}.npz"
    if team.size == 1:
        return step_error(error, f"Step {number}", path, read_again)
    what = f"Step {number} of {team.name(team.index)}"
    return step_error(error, what, path, read_again, seconds=_READ_S)
