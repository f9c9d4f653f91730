"""One step of training as a function, for a loop of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from towerpack._core.errors import LayerError, SpecError
from towerpack.inputs import InputSource, SpecChecker
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
    """Make what a trainer does in each step a function, with all variables that it needs.

        train = build_step(Model(), distribution=Mirrored(tf.distribute.MirroredStrategy()))
        for images, labels in batches:
            cost = train(images, labels)["cost"]

    Nothing else of a trainer is there: no callbacks, checkpoints, summaries, and no look at whether
    the cost is finite.

    Args:
        model: A `ModelDesc`, or the plain functions.
        optimizer: Overrides the model's.
        step: What one step is; None for one cost and one optimizer.
        distribution: Where the replicas run; None for one on the device that TensorFlow chooses.
        outputs: Names of what is to be given back beside the cost; None for all that the tower
            exposes, without the outputs of layers.
        seed: For initial values and dropout.
        precision: As in `TrainConfig`.
        xla: Compile forward and backward of each replica.

    Raises:
        ConfigError: There is no optimizer, or one too many.
        LayerError: The tower has no cost, or no output of some name.
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
        given = call_optimizer(desc.optimizer, global_step) if optimizer is None else optimizer
        setup = StepSetup(tower, trace, given, scale_loss=precision == "float16")
        step.build(setup)
    setup.check()
    known = trace.result.outputs
    names = [n for n in known if not n.endswith("/output")] if outputs is None else list(outputs)
    check_outputs("build_step(outputs=)", names, known)
    source = _GivenBatches()
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
    """A step, from `build_step`.

    Attributes:
        tower: The tower function, with the model's variables: for evaluation and prediction.
        global_step: Counts the steps that have been applied; int64 variable.
    """

    def __init__(
        self,
        tower: TowerFunction,
        setup: StepSetup,
        executor: Executor,
        source: _GivenBatches,
        names: Sequence[str],
        replicas: int,
    ) -> None:
        self.tower = tower
        self.global_step = tower.store.global_step()
        self._setup = setup
        self._replicas = replicas
        specs = [_of_all(spec, replicas) for spec in tower.specs]
        self._check = SpecChecker(specs, "the step's batch")

        def run(*batch: tf.Tensor) -> dict[str, tf.Tensor]:
            source.hand([tf.split(t, replicas) if replicas > 1 else [t] for t in batch])
            _, computed, _ = executor.one_step([])
            return {COST: computed.row[0], **dict(zip(names, computed.fetched, strict=True))}

        self._run = tf.function(run, input_signature=specs, autograph=False)
        self._run.get_concrete_function()

    def __call__(self, *batch: Any) -> dict[str, tf.Tensor]:
        """Train on a batch; also inside of a `tf.function`.

        Args:
            batch: A tensor or array for each input of the model, of [batch, …]. Several replicas
                share it evenly: each gets its part, in order.

        Returns:
            The cost and other outputs, by name: of several replicas scalars are averaged, the rest
            is joined.
        """
        if not all(isinstance(component, tf.Tensor) for component in batch):
            batch = tuple(self._check(batch, 0))
        rows = batch[0].shape[0] if batch else None
        if rows is not None and rows % self._replicas:
            raise SpecError(
                f"A batch of {rows} cannot be shared evenly.",
                expected=f"a multiple of {self._replicas}, the number of replicas",
            )
        return self._run(*batch)

    def variables(self) -> dict[str, dict[str, tf.Variable]]:
        """All that is to be saved: `'model'`, each optimizer by its name, and `'step'`, by name."""
        slots = {name: o.variables() for name, o in self._setup.optimizers.items()}
        step = {"step": {"global_step": self.global_step}}
        return {"model": self.tower.store.named_variables(), **slots, **step}


class _GivenBatches(InputSource):
    """Give the replicas what a call was given."""

    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        pass

    def hand(self, parts: Sequence[Sequence[tf.Tensor]]) -> None:
        """In the graph: take the parts of each component, one for each replica."""
        self._batches = [list(batch) for batch in zip(*parts, strict=True)]

    def get(self, step: tf.Tensor | tf.Variable) -> list[tf.Tensor]:
        return self._batches.pop(0)


def _of_all(spec: tf.TensorSpec, replicas: int) -> tf.TensorSpec:
    """What all replicas get together."""
    if replicas == 1 or spec.shape.rank is None:
        return spec
    if spec.shape.rank == 0:
        raise LayerError(f"Several replicas cannot share the input '{spec.name}', a scalar.")
    first, *rest = spec.shape.as_list()
    return tf.TensorSpec(
        [None if first is None else first * replicas, *rest], spec.dtype, spec.name
    )
