"""The compiled step: many of them in one call of TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from towerpack._core.errors import InternalError, LayerError
from towerpack._core.logs import get_logger
from towerpack._core.naming import did_you_mean
from towerpack.inputs import InputSource
from towerpack.tower import COST, TowerFunction, TowerTrace
from towerpack.training._optimizer import OptimizerAdapter

_LOG = get_logger(__name__)
_HEAVY = ("histogram", "image")
_READERS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")
_STATEFUL_DRAWS = {
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "TruncatedNormal",
}


@dataclass(frozen=True)
class CallResult:
    """What one call gave.

    Attributes:
        steps: Steps that were applied.
        outputs: By name, then by step: an array, or a list of arrays that may differ in shape.
        summaries: Scalar summaries by name, [steps].
        heavy: Histograms and images of the last step, if they were asked for.
        nonfinite: The inputs of the step that was not applied because its cost was not finite.
    """

    steps: int
    outputs: dict[str, Any]
    summaries: dict[str, np.ndarray]
    heavy: dict[str, np.ndarray]
    nonfinite: list[np.ndarray] | None


class StepProgram:
    """Forward, backward and update, `n` times in a row inside one `tf.function`.

    Args:
        tower: The model.
        trace: A training trace of it: shapes, dtypes and summaries are read off it.
        source: Gives each step its batches.
        optimizer: Built already.
        trainable: What is trained, by name.
        global_step: int64; counts applied steps. Ours, since a Keras optimizer's own count can lose
            increments where updates are asynchronous.
        fetches: Outputs to give back for each step.
        devices: One replica on each; `None` is TensorFlow's choice.
        check_finite: End the call at a cost that is not finite, and do not apply that step.
        xla: Compile forward and backward.

    Raises:
        LayerError: A fetch is no output of the tower.
    """

    def __init__(
        self,
        *,
        tower: TowerFunction,
        trace: TowerTrace,
        source: InputSource,
        optimizer: OptimizerAdapter,
        trainable: dict[str, tf.Variable],
        global_step: tf.Variable,
        fetches: Sequence[str],
        devices: Sequence[str | None] = (None,),
        check_finite: bool = True,
        xla: bool = False,
    ) -> None:
        outputs = trace.result.outputs
        for name in fetches:
            if name not in outputs:
                raise LayerError(
                    f"A callback asked for the output '{name}', which the tower does not have.",
                    expected="a layer's output ('conv0/output') or a name given to expose()",
                    fix=did_you_mean(name, outputs),
                )
        self._tower = tower
        self._source = source
        self._optimizer = optimizer
        self._trainable = trainable
        self._global_step = global_step
        self._devices = devices
        self._check = check_finite
        summaries = trace.result.summaries
        self._scalars = [s.name for s in summaries if s.kind not in _HEAVY]
        self._heavy = [s.name for s in summaries if s.kind in _HEAVY]
        self._fetches = [COST, *(n for n in fetches if n != COST)]
        self._templates = [outputs[n] for n in self._fetches]
        self._told_none = False
        # Outputs are joined over steps as vectors, and cut up again by their shapes.
        self.one_step_only = any(t.shape.rank is None for t in self._templates)
        self._moved = _moved_by_the_model(tower, trace)
        self._xla = xla
        self._run = tf.function(
            self._many_steps, input_signature=[tf.TensorSpec([], tf.int32)], autograph=False
        )
        self._run_heavy = tf.function(self._heavy_step, input_signature=[], autograph=False)

    @property
    def has_heavy(self) -> bool:
        """The model has histograms or images, for the last step of each epoch."""
        return bool(self._heavy)

    def compile(self) -> None:
        """Trace what the loop runs, so that mistakes show before the first step."""
        self._run.get_concrete_function()
        if self._heavy:
            self._run_heavy.get_concrete_function()

    def run(self, steps: int) -> CallResult:
        """Run steps; fewer if a cost was not finite."""
        done, finite, scalars, stacked, batch = self._run(tf.constant(steps, tf.int32))
        return self._result(int(done), bool(finite), scalars, stacked, batch, [])

    def run_heavy(self) -> CallResult:
        """Run one step, with the summaries that are too dear for every step."""
        done, finite, scalars, stacked, batch, heavy = self._run_heavy()
        return self._result(int(done), bool(finite), scalars, stacked, batch, heavy)

    def _result(
        self, done: int, finite: bool, scalars: Any, stacked: Any, batch: Any, heavy: Any
    ) -> CallResult:
        table = scalars.numpy()
        outputs: dict[str, Any] = {COST: table[:, 0]}
        vectors = iter(stacked)
        for name, template in zip(self._fetches[1:], self._templates[1:], strict=True):
            values = next(vectors).numpy()
            if template.shape.is_fully_defined():
                outputs[name] = values.reshape([done, *template.shape.as_list()])
            else:
                outputs[name] = _cut(values, next(vectors).numpy(), done)
        return CallResult(
            steps=done,
            outputs=outputs,
            summaries={name: table[:, i + 1] for i, name in enumerate(self._scalars)},
            heavy={n: v.numpy() for n, v in zip(self._heavy, heavy, strict=False) if done},
            nonfinite=None if finite else [tensor.numpy() for tensor in batch],
        )

    # ------------------------------------------------------------------ in the graph

    def _many_steps(self, steps: tf.Tensor) -> Any:
        scalars = tf.TensorArray(tf.float32, size=steps, element_shape=[1 + len(self._scalars)])
        arrays = [
            tf.TensorArray(dtype, 0, dynamic_size=True, infer_shape=False, element_shape=[None])
            for dtype in self._vector_dtypes()
        ]
        carried = self._carried_specs()
        batch = [tf.zeros([0] * (spec.shape.rank or 0), spec.dtype) for spec in carried]
        free = [_any_of_rank(spec.shape.rank) for spec in carried]

        def going_on(i: tf.Tensor, finite: tf.Tensor, *_: Any) -> tf.Tensor:
            return (i < steps) & finite

        def body(i: tf.Tensor, _: tf.Tensor, scalars: Any, arrays: Any, _batch: Any) -> Any:
            before = self._before_step()
            inputs, step = self._one_step()
            finite = self._apply(step, before)
            scalars = scalars.write(i, step.row)
            vectors = self._vectors(step.fetched, finite)
            arrays = [a.write(i, vector) for a, vector in zip(arrays, vectors, strict=True)]
            kept = inputs if self._check else []
            return i + tf.cast(finite, tf.int32), finite, scalars, arrays, kept

        scalar = tf.TensorShape([])
        done, finite, scalars, arrays, batch = tf.while_loop(
            going_on,
            body,
            (tf.constant(0), tf.constant(True), scalars, arrays, batch),
            shape_invariants=(scalar, scalar, scalar, [scalar] * len(arrays), free),
        )
        applied = tf.range(done)
        return done, finite, scalars.gather(applied), [a.concat() for a in arrays], batch

    def _heavy_step(self) -> Any:
        before = self._before_step()
        inputs, step = self._one_step()
        finite = self._apply(step, before)
        done = tf.cast(finite, tf.int32)
        vectors = self._vectors(step.fetched, finite)
        return done, finite, step.row[None][:done], vectors, inputs, step.heavy

    def _vectors(self, fetched: list[tf.Tensor], applied: tf.Tensor) -> list[tf.Tensor]:
        """What was fetched, each as a vector, followed by its shape where that is not known.

        Vectors of a step that was not applied are empty.
        """
        vectors = []
        for template, value in zip(self._templates[1:], fetched, strict=True):
            vectors.append(tf.reshape(value, [-1]))
            if not template.shape.is_fully_defined():
                vectors.append(tf.shape(value))
        if not self._check:
            return vectors
        return [v[: tf.size(v) * tf.cast(applied, tf.int32)] for v in vectors]

    def _vector_dtypes(self) -> list[tf.DType]:
        dtypes = []
        for template in self._templates[1:]:
            dtypes.append(template.dtype)
            if not template.shape.is_fully_defined():
                dtypes.append(tf.int32)
        return dtypes

    def _carried_specs(self) -> list[tf.TensorSpec]:
        if not self._check:
            return []
        return [spec for _ in self._devices for spec in self._tower.specs]

    def _one_step(self) -> tuple[list[tf.Tensor], _Step]:
        inputs: list[tf.Tensor] = []
        steps: list[_Step] = []
        for index, device in enumerate(self._devices):
            batch = self._source.get(self._global_step)
            with tf.device(device):
                compute = functools.partial(self._forward_backward, index)
                if self._xla:
                    compute = tf.function(compute, jit_compile=True, autograph=False)
                steps.append(_Step(*compute(*batch)))
            inputs.extend(batch)
        return inputs, steps[0] if len(steps) == 1 else _averaged(steps)

    def _forward_backward(self, index: int, *batch: tf.Tensor) -> tuple[Any, ...]:
        variables = list(self._trainable.values())
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            result = self._tower(
                *batch,
                is_training=True,
                index=index,
                total=len(self._devices),
                step=self._global_step,
            )
            if result.cost is None:
                raise InternalError("a training tower without a cost went unnoticed")
            cost = result.cost
            loss = self._optimizer.scale_loss(cost)
        gradients = tape.gradient(loss, variables)
        self._report_untrained(gradients)
        values = {s.name: s.value for s in result.summaries}
        # Replicas but the first report no summaries; zeros keep the rows alike.
        zero = tf.constant(0.0)
        scalars = [tf.cast(values.get(name, zero), tf.float32) for name in self._scalars]
        row = tf.stack([tf.cast(cost, tf.float32), *scalars])
        fetched = [result.outputs[name] for name in self._fetches[1:]]
        heavy = [values[name] for name in self._heavy if name in values]
        return row, fetched, heavy, gradients

    def _before_step(self) -> list[tf.Tensor]:
        return [v.read_value() for v in self._moved] if self._check else []

    def _apply(self, step: _Step, before: list[tf.Tensor]) -> tf.Tensor:
        def update() -> tf.Tensor:
            self._optimizer.apply(step.gradients)
            self._global_step.assign_add(1, read_value=False)
            return tf.constant(True)

        if not self._check:
            return update()

        def undo() -> tf.Tensor:
            for variable, value in zip(self._moved, before, strict=True):
                variable.assign(value, read_value=False)
            return tf.constant(False)

        return tf.cond(tf.math.is_finite(step.row[0]), update, undo)

    def _report_untrained(self, gradients: list[Any]) -> None:
        none = [n for n, g in zip(self._trainable, gradients, strict=True) if g is None]
        if len(none) == len(gradients):
            raise LayerError(
                "The cost depends on no trainable variable.",
                got=f"trainable variables {list(self._trainable)}",
                fix="compute the cost from the layers' outputs, without tf.stop_gradient or NumPy",
            )
        if none and not self._told_none:
            self._told_none = True
            _LOG.warning("The cost does not depend on %s: not trained.", ", ".join(none))


class _Step(NamedTuple):
    """Tensors of one step: cost and scalar summaries in a row, what was fetched, gradients."""

    row: tf.Tensor
    fetched: list[tf.Tensor]
    heavy: list[tf.Tensor]
    gradients: list[Any]


def _any_of_rank(rank: int | None) -> tf.TensorShape:
    dims: Any = None if rank is None else [None] * rank
    return tf.TensorShape(dims)


def _cut(values: np.ndarray, shapes: np.ndarray, steps: int) -> list[np.ndarray]:
    """The arrays of all steps, out of their values in a row and their shapes in a row."""
    found = []
    start = 0
    for shape in np.split(shapes, steps) if steps else []:
        end = start + int(np.prod(shape, dtype=np.int64))
        found.append(values[start:end].reshape(shape))
        start = end
    return found


def stateful_draws(trace: TowerTrace) -> list[str]:
    """Kinds of operations in a tower that draw from generators inside of TensorFlow's kernels."""
    definition = trace.result.outputs[COST].graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return sorted({node.op for node in nodes if node.op in _STATEFUL_DRAWS})


def _moved_by_the_model(tower: TowerFunction, trace: TowerTrace) -> list[tf.Variable]:
    """Variables that a training tower itself changes, such as moving averages.

    They have been changed when it turns out that a cost is not finite.
    """
    graph: Any = trace.result.outputs[COST].graph
    inner = {id(outside): inside for outside, inside in graph.captures}
    found = []
    for variable in tower.store.named_variables().values():
        handle = inner.get(id(variable.handle))
        users = [] if handle is None else handle.consumers()
        if any(op.type not in _READERS for op in users):
            found.append(variable)
    return found


def _averaged(steps: list[_Step]) -> _Step:
    """The step of all replicas: averages of costs and gradients, never sums."""
    costs = tf.reduce_mean([step.row[0] for step in steps])
    columns = zip(*(step.gradients for step in steps), strict=True)
    fetched = zip(*(step.fetched for step in steps), strict=True)
    return _Step(
        row=tf.concat([costs[None], steps[0].row[1:]], axis=0),
        fetched=[_joined(list(values)) for values in fetched],
        heavy=steps[0].heavy,
        gradients=[_mean(list(values)) for values in columns],
    )


def _joined(values: list[tf.Tensor]) -> tf.Tensor:
    if values[0].shape.rank == 0:
        return tf.add_n(values) / len(values) if values[0].dtype.is_floating else values[0]
    return tf.concat(values, axis=0)


def _mean(gradients: list[Any]) -> Any:
    if any(g is None for g in gradients):
        return None
    dense = [tf.convert_to_tensor(g) for g in gradients]
    return tf.add_n(dense) / tf.cast(len(dense), dense[0].dtype)
