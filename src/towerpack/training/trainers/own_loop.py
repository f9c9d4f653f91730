"""Training steps as functions, for programs that have a training loop themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from towerpack._core.errors import LayerError, SpecError
from towerpack.inputs import InputSource, SpecChecker
from towerpack.inputs.components import spec_of_rows
from towerpack.model import as_model
from towerpack.nn import found_as_global_step
from towerpack.tower import COST, TowerFunction
from towerpack.training.config import POLICIES
from towerpack.training.distribution.base import Distribution, SharedVariables
from towerpack.training.loop.executor import Executor, StepParts, check_outputs
from towerpack.training.optim.learning_rate import call_optimizer
from towerpack.training.steps.graph_checks import check_graph
from towerpack.training.steps.step import StepSetup, SupervisedStep, TrainStep


def build_step(
    model: Any,
    optimizer: Any = None,
    *,
    step: TrainStep | None = None,
    distribution: Distribution | None = None,
    outputs: Sequence[str] | None = None,
    seed: int = 0,
    precision: str = "float32",
    xla: bool = False,
) -> BuiltStep:
    """Build one training step as a function, and create the variables that it needs.

        train = build_step(Model(), distribution=Mirrored(tf.distribute.MirroredStrategy()))
        for images, labels in batches:
            cost = train(images, labels)["cost"]

    The function has no callbacks, checkpoints, summaries or checks of the cost.

    Args:
        model: A `ModelDesc`, or the plain functions `(inputs, build_graph, optimizer)`.
        optimizer: Used instead of the model's optimizer.
        step: Definition of a step; None for one cost and one optimizer.
        distribution: Placement of the replicas; None for one replica on TensorFlow's default
            device.
        outputs: Names of outputs to return besides the cost; None for all those of `expose`.
        seed: Seed for initial values and dropout.
        precision: See `TrainConfig`.
        xla: Compile the forward and backward pass and, with Keras's optimizers, the update.

    Raises:
        ConfigError: There is no optimizer, or an optimizer that no step uses.
        LayerError: The tower has no cost, or lacks one of `outputs`.
    """
    desc = as_model(model)
    tower = TowerFunction(
        desc.build_graph, desc.inputs(), seed=seed, dtype_policy=POLICIES[precision]
    )
    trace = tower.trace(is_training=True)
    check_graph(trace)
    step = step or SupervisedStep()
    distribution = distribution or SharedVariables()
    distribution.adopt(tower, trace)
    global_step = tower.store.global_step()
    with distribution.scope(), found_as_global_step(global_step):
        if optimizer is None:
            optimizer = call_optimizer(desc.optimizer, global_step)
        setup = StepSetup(tower, trace, optimizer, scale_loss=precision == "float16")
        step.build(setup)
    setup.check()
    known = trace.result.outputs
    names = [n for n in known if not n.endswith("/output")] if outputs is None else list(outputs)
    check_outputs("build_step(outputs=)", names, known)
    source = _CallBatches()
    executor = Executor(
        StepParts(
            step=step,
            trained=setup.trained,
            distribution=distribution,
            tower=tower,
            trace=trace,
            source=source,
            global_step=global_step,
            fetches=names,
            check_finite=False,
            xla=xla,
        )
    )
    names = [name for name in dict.fromkeys(names) if name != COST]
    return BuiltStep(tower, setup, executor, source, names, distribution.local_replicas)


class BuiltStep:
    """Training step returned by `build_step`.

    Args:
        tower, setup, executor, source, names, replicas: Parts that `build_step` creates.

    Attributes:
        tower: Tower function with the model's variables, for evaluation and prediction.
        global_step: Number of applied steps, an int64 variable.
    """

    def __init__(
        self,
        tower: TowerFunction,
        setup: StepSetup,
        executor: Executor,
        source: _CallBatches,
        names: Sequence[str],
        replicas: int,
    ) -> None:
        self.tower = tower
        self.global_step = tower.store.global_step()
        self._setup = setup
        self._replicas = replicas
        specs = [_global_spec(spec, replicas) for spec in tower.specs]
        self._check = SpecChecker(specs, "the step's batch")

        def run(*batch: tf.Tensor) -> dict[str, tf.Tensor]:
            source.hand([tf.split(t, replicas) if replicas > 1 else [t] for t in batch])
            computed, _ = executor.one_step([])
            return {COST: computed.row[0], **dict(zip(names, computed.fetched, strict=True))}

        self._run = tf.function(run, input_signature=specs, autograph=False)
        self._run.get_concrete_function()

    def __call__(self, *batch: Any) -> dict[str, tf.Tensor]:
        """Train on a batch. Can be called inside a `tf.function`.

        Args:
            batch: A tensor or array of shape [batch, …] for each input of the model, or a single
                dict of them. Several replicas get equal parts, in order.

        Returns:
            The cost and other outputs by name. Scalars are averaged over replicas, other outputs
            are concatenated.

        Raises:
            SpecError: The batch does not fit the model's inputs or the number of replicas.
        """
        datapoint = batch[0] if len(batch) == 1 and isinstance(batch[0], dict) else batch
        batch = tuple(self._check.components(datapoint, 0))
        if not all(isinstance(component, tf.Tensor) for component in batch):
            batch = tuple(self._check.arrays(batch, 0))
        rows = batch[0].shape[0] if batch else None
        if rows is not None and rows % self._replicas:
            raise SpecError(
                "The batch size must be a multiple of the number of replicas, "
                f"{self._replicas}, got {rows}."
            )
        return self._run(*batch)

    def variables(self) -> dict[str, dict[str, tf.Variable]]:
        """Return all variables to save, in groups: `'model'`, `'step'` and one per optimizer."""
        slots = {name: o.variables() for name, o in self._setup.optimizers.items()}
        step = {"step": {"global_step": self.global_step}}
        return {"model": self.tower.store.named_variables(), **slots, **step}


class _CallBatches(InputSource):
    """Source that returns the batch passed to the current call."""

    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        pass

    def hand(self, parts: Sequence[Sequence[tf.Tensor]]) -> None:
        """Set the batches, in the graph, from one list per component with one part per replica."""
        self._batches = [list(batch) for batch in zip(*parts, strict=True)]

    def get(self, step: tf.Tensor | tf.Variable) -> list[tf.Tensor]:
        return self._batches.pop(0)


def _global_spec(spec: tf.TensorSpec, replicas: int) -> tf.TensorSpec:
    if replicas > 1 and spec.shape.rank == 0:
        raise LayerError(
            f"The input '{spec.name}' needs rows to split over replicas, got a scalar."
        )
    return spec_of_rows(spec, replicas)
