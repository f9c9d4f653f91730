"""Execution of many training steps in one call of a `tf.function`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import InternalError, LayerError
from towerpack._core.logs import get_logger
from towerpack._core.naming import did_you_mean
from towerpack.inputs import InputSource
from towerpack.nn import HEAVY, Summary, components_of
from towerpack.tower import COST, TowerFunction, TowerTrace
from towerpack.training.distribution.base import Computed, Distribution
from towerpack.training.loop.packing import Packing
from towerpack.training.optim.adapter import OptimizerAdapter
from towerpack.training.optim.schedules import Schedules
from towerpack.training.steps.step import StepContext, TrainStep
from towerpack.training.steps.step_runner import CallResult

_LOG = get_logger(__name__)
BUDGET_S = 0.2
_MOST_STEPS = 4096


class Pace:
    """Number of steps per call, adapted so that a call lasts about `budget_s` seconds.

    Long calls have little overhead; short calls let callbacks and signals act in time.
    """

    def __init__(self, budget_s: float = BUDGET_S) -> None:
        self._budget_s, self._steps = budget_s, 1

    @property
    def steps(self) -> int:
        return self._steps

    def ran(self, steps: int, seconds: float) -> None:
        if steps:
            fitting = int(self._budget_s / max(seconds / steps, 1e-7))
            self._steps = max(1, min(fitting, 2 * max(steps, self._steps), _MOST_STEPS))


class Guard:
    """Skips updates that are not finite, and restores the variables that the model itself moved.

    The inputs of a skipped step are kept in the host's memory, until `batch` returns them. Without
    `dtypes`, no inputs are kept.
    """

    def __init__(self, moved: Sequence[tf.Variable], dtypes: Sequence[tf.DType]) -> None:
        self._moved = list(moved)
        with tf.device("CPU:0"):
            self._skipped = tf.queue.FIFOQueue(1, dtypes) if dtypes else None

    def before(self) -> list[tf.Tensor]:
        """Return the current values of the variables that `apply` may have to restore."""
        return [components_of(variable)[0].read_value() for variable in self._moved]

    def apply(
        self,
        finite: tf.Tensor,
        before: Sequence[tf.Tensor],
        inputs: Sequence[tf.Tensor],
        update: Callable[[], None],
    ) -> tf.Tensor:
        """Return the number of applied steps, 0 or 1. TensorFlow keeps an int32 on the host."""

        def apply_update() -> tf.Tensor:
            update()
            return tf.constant(1)

        def restore() -> tf.Tensor:
            for variable, value in zip(self._moved, before, strict=True):
                variable.assign(value, read_value=False)
            if self._skipped is not None:
                self._skipped.enqueue(inputs)
            return tf.constant(0)

        with tf.device("CPU:0"):  # One copy from the GPU, for conditions on all devices.
            finite = tf.identity(finite)
        return tf.cond(finite, apply_update, restore)

    def batch(self) -> list[np.ndarray]:
        """Return the inputs of the skipped step."""
        skipped: list[Any] = [] if self._skipped is None else self._skipped.dequeue()
        return [tensor.numpy() for tensor in tf.nest.flatten(skipped)]


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """Arguments of an `Executor`. The step must have been built already.

    With `check_finite`, a step whose cost is not finite ends the call and is not applied.
    """

    step: TrainStep
    trained: Mapping[str, tf.Variable]
    distribution: Distribution
    tower: TowerFunction
    trace: TowerTrace
    source: InputSource
    global_step: tf.Variable
    fetches: Sequence[str] = ()
    schedules: Schedules = field(default_factory=Schedules)
    check_finite: bool = True
    xla: bool = False
    eager: bool = False


class Executor:
    """`StepRunner` that runs a step many times inside one `tf.function`.

    Raises:
        ConfigError: `xla` is set, but TensorFlow cannot compile replicas of this distribution.
    """

    _keeps_inputs = True

    def __init__(self, parts: StepParts, *, budget_s: float = BUDGET_S) -> None:
        self.budget_s = budget_s
        self._parts = parts
        self._distribution, self._schedules = parts.distribution, parts.schedules
        self._step_number = parts.global_step
        variables = parts.tower.store.named_variables()
        moved = [variables[name] for name in parts.trace.moved]
        dtypes = [spec.dtype for spec in parts.tower.specs] * self._distribution.local_replicas
        dtypes = dtypes if self._keeps_inputs else []
        self._guard = Guard(moved, dtypes) if parts.check_finite else None
        if parts.xla:
            self._distribution.check_xla()
        result = parts.trace.result
        self._scalars = [s.name for s in result.summaries if s.kind not in HEAVY]
        self._heavy = [s.name for s in result.summaries if s.kind in HEAVY]
        self._heavy_gradients: list[str] = []
        names = [name for name in dict.fromkeys(parts.fetches) if name != COST]
        templates = [result.outputs[name] for name in names]
        self._packing = Packing(names, templates, joined=self._distribution.local_replicas > 1)
        self._untrained: list[str] = []
        self.optimizers: Sequence[OptimizerAdapter] = []
        """Optimizers of the step, known after `compile`."""
        spec = self._schedules.spec
        self._run: Any = lambda due: self._heavy_step(due)[:-1]
        self._run_heavy: Any = self._heavy_step
        if not parts.eager:
            self._run = tf.function(self._many_steps, input_signature=[spec], autograph=False)
            self._run_heavy = tf.function(self._heavy_step, input_signature=[spec], autograph=False)

    @property
    def one_step_only(self) -> bool:
        return self._parts.eager or self._packing.one_step_only

    @property
    def has_heavy(self) -> bool:
        return bool(self._heavy or self._heavy_gradients)

    def compile(self) -> None:
        if self._parts.eager:
            return
        self._run.get_concrete_function()
        if self.has_heavy:
            self._run_heavy.get_concrete_function()
        self._warn_of_untrained()

    def _warn_of_untrained(self) -> None:
        if self._untrained:
            names = ", ".join(self._untrained)
            _LOG.warning("The cost does not depend on %s: not trained.", names)

    def run(self, steps: int, *, after: int) -> CallResult:
        return self._result(*self._run(self._schedules.due(steps, after)))

    def run_heavy(self, *, after: int) -> CallResult:
        return self._result(*self._run_heavy(self._schedules.due(1, after)))

    def _result(
        self, done: Any, finite: Any, rows: Any, packed: Any, heavy: Any = ()
    ) -> CallResult:
        table, steps = rows.numpy(), int(done)
        names = [*self._heavy, *self._heavy_gradients]
        return CallResult(
            steps=steps,
            outputs={COST: table[:, 0], **self._packing.unpack(packed, steps)},
            summaries={name: table[:, i + 1] for i, name in enumerate(self._scalars)},
            heavy={n: v.numpy() for n, v in zip(names, heavy, strict=False) if steps},
            nonfinite=None if finite or self._guard is None else self._guard.batch(),
        )

    def _many_steps(self, due: tf.Tensor) -> Any:
        steps = tf.shape(due)[1]
        values = self._schedules.rows(due)
        rows = tf.TensorArray(tf.float32, size=steps, element_shape=[1 + len(self._scalars)])
        arrays = [
            tf.TensorArray(dtype, 0, dynamic_size=True, infer_shape=False, element_shape=[None])
            for dtype in self._packing.dtypes()
        ]

        # A loop on a GPU waits for conditions computed there. An int32 stays on the host.
        def unfinished(i: tf.Tensor, end: tf.Tensor, *_: Any) -> tf.Tensor:
            return i < end

        def body(i: tf.Tensor, end: tf.Tensor, rows: Any, arrays: Any) -> Any:
            computed, applied = self.one_step([tf.gather(row, i) for row in values])
            vectors = self._packing.pack(computed.fetched, applied if self._guard else None)
            arrays = [a.write(i, vector) for a, vector in zip(arrays, vectors, strict=True)]
            end = i + applied * (end - i)
            return i + applied, end, rows.write(i, computed.row), arrays

        start = (tf.constant(0), steps, rows, arrays)
        done, _, rows, arrays = tf.while_loop(unfinished, body, start)
        return done, done == steps, rows.gather(tf.range(done)), [a.concat() for a in arrays]

    def _heavy_step(self, due: tf.Tensor) -> Any:
        computed, applied = self.one_step([row[0] for row in self._schedules.rows(due)])
        vectors = self._packing.pack(computed.fetched, applied if self._guard else None)
        return applied, applied == 1, computed.row[None][:applied], vectors, computed.heavy

    def one_step(self, due: Sequence[tf.Tensor]) -> tuple[Computed, tf.Tensor]:
        """Run a step. Return the values, and the number of applied updates: 0 or 1, int32."""
        before = self._guard.before() if self._guard else []
        source, step = self._parts.source, self._step_number
        if self._parts.xla:  # XLA cannot read a variable in the host's memory.
            step = tf.identity(step)
        compute: Any = lambda index, weight, *batch: self._compute(step, index, weight, *batch)  # noqa: E731
        if self._parts.xla:
            compute = tf.function(compute, jit_compile=True, autograph=False)
        inputs, computed = self._distribution.replicate(compute, source, step)
        for optimizer in self.optimizers if self._parts.xla else ():
            optimizer.compile_updates()
        gradients = self._distribution.on_copies(_sum_repeated_rows, computed.gradients)
        pairs = list(zip(self.optimizers, gradients, strict=True))
        shown = {name: h for o, g in pairs for name, h in o.histograms(g).items()}
        self._heavy_gradients = list(shown)
        computed = computed._replace(
            row=self._averages(computed.row), heavy=[*computed.heavy, *shown.values()]
        )

        def update() -> None:
            for optimizer, gradients in pairs:
                optimizer.apply(gradients)
            for variable, value in computed.moved:
                variable.assign(value, read_value=False)
            self._parts.global_step.assign_add(1, read_value=False)
            self._schedules.assign(due)

        if self._guard:
            checks = [optimizer.check(gradients) for optimizer, gradients in pairs]
            finite = tf.reduce_all([tf.math.is_finite(computed.row[0]), *checks])
            return computed, self._guard.apply(finite, before, inputs, update)
        update()
        return computed, tf.constant(1)

    def _compute(
        self, step: Any, index: int, weight: tf.Tensor | None, *batch: tf.Tensor
    ) -> Computed:
        context = StepContext(
            self._parts.tower,
            index=index,
            total=self._distribution.replicas,
            step=step,
            watched=list(self._parts.trained.values()),
            weight=weight,
        )
        self._parts.step(context, batch)
        result = context.result
        if result is None or result.cost is None:
            raise InternalError(
                "A training step has no cost, which should have been detected earlier."
            )
        self.optimizers = [minimized.optimizer for minimized in context.minimized]
        gradients = [minimized.gradients for minimized in context.minimized]
        self._untrained = [n for named in gradients for n, g in named.items() if g is None]
        summaries = result.summaries
        row = self._row(result.cost, [s for s in summaries if s.kind not in HEAVY])
        row = row if weight is None else row * weight
        fetched = [result.outputs[name] for name in self._packing.names]
        heavy = [s.value for s in summaries if s.kind in HEAVY]
        return Computed(row, fetched, heavy, [list(named.values()) for named in gradients])

    def _row(self, cost: tf.Tensor, scalars: Sequence[Summary]) -> tf.Tensor:
        """Return the cost, the scalar summaries, and for each summary 1 if computed, else 0."""
        # Match by position, because TensorFlow renames the tensors of later replicas.
        names = self._scalars if len(scalars) == len(self._scalars) else [s.name for s in scalars]
        values = {n: tf.cast(s.value, tf.float32) for n, s in zip(names, scalars, strict=True)}
        absent = tf.constant(0.0)
        return tf.stack(
            [
                tf.cast(cost, tf.float32),
                *(values.get(name, absent) for name in self._scalars),
                *(tf.constant(float(name in values)) for name in self._scalars),
            ]
        )

    def _averages(self, row: tf.Tensor) -> tf.Tensor:
        """Average each summary over the replicas that computed it. `row` is the mean of `_row`."""
        _, values, present = tf.split(row, [1, len(self._scalars), len(self._scalars)])
        return tf.concat([row[:1], values / present], axis=0)


def check_outputs(who: str, names: Iterable[str], outputs: Mapping[str, Any]) -> None:
    for name in names:
        if name not in outputs:
            raise LayerError(
                f"{who} asks for the output '{name}', but the model has no such output.",
                expected="the output of a layer ('conv0/output') or a name passed to expose()",
                fix=did_you_mean(name, outputs),
            )


def _sum_repeated_rows(gradients: list[list[Any]]) -> list[list[Any]]:
    """Sum the values of sparse gradients that have the same index.

    Otherwise norms, clipping and squares of gradients would be wrong.
    """

    def summed(gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        # GPUs have int64 in their own memory, but int32 partly in the host's.
        indices, segments = tf.unique(tf.cast(gradient.indices, tf.int64))
        values = tf.math.unsorted_segment_sum(gradient.values, segments, tf.size(indices))
        return tf.IndexedSlices(values, indices, gradient.dense_shape)

    return [[summed(gradient) for gradient in group] for group in gradients]
