from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph

from towerpack._core.errors import LayerError
from towerpack._core.randomness import derive_seed
from towerpack._keras.adapter import fresh_names, layers_see_training
from towerpack.nn._global_step import found_as_global_step
from towerpack.nn._store import VariableStore

# Kinds of summaries that are computed only in the first replica.
HEAVY = ("histogram", "image")


@dataclass(frozen=True)
class Summary:
    """Value for the monitors. `kind` is scalar, moving_average, histogram or image."""

    kind: str
    name: str
    value: tf.Tensor
    decay: float = 0.0


@dataclass
class TowerContext:
    """Context of one call of a tower function: mode, replica, variables and collected outputs.

    Attributes:
        store: Layers and variables of all calls.
        is_training: False in evaluation, prediction and export.
        index: Index of this replica, from 0.
        total: Number of replicas.
        step: Global step (int64 scalar) in training, otherwise None.
        outputs: Output tensors by name.
        summaries: Values reported with `towerpack.nn.summary`.

    Methods without a description are for layers and summaries.
    """

    store: VariableStore
    is_training: bool
    index: int = 0
    total: int = 1
    step: tf.Tensor | tf.Variable | None = None
    outputs: dict[str, tf.Tensor] = field(default_factory=dict)
    summaries: list[Summary] = field(default_factory=list)
    regularizers: list[tuple[str, tf.Tensor]] = field(default_factory=list)
    used_names: set[str] = field(default_factory=set)
    called: dict[Any, Any] = field(default_factory=dict)
    _draws: dict[str, int] = field(default_factory=dict)
    _graph: Any = None
    _scope_around: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.store, str):  # Tensorpack's first argument
            raise LayerError(
                f"TowerContext needs a VariableStore, got the name {self.store!r}.",
                fix="call the model with a TowerFunction or a Predictor, which create the context",
            )

    @property
    def mirrored(self) -> bool:
        """Whether each replica has its own copy of the variables."""
        replica: Any = tf.distribute.get_replica_context()
        return self.total > 1 and tf.distribute.has_strategy() and replica is not None

    @property
    def is_main_training_tower(self) -> bool:
        """Whether this is the first replica in training, which reports images and histograms."""
        return self.is_training and self.index == 0

    def step_seed(self, name: str) -> tf.Tensor:
        """Return a seed for `tf.random.stateless_*`: int64 of shape [2].

        The seed depends only on the run's seed, `name`, the replica, the global step and the number
        of earlier requests with this name. A resumed run thus draws the same numbers.

        Args:
            name: Name of the random operation, such as the layer's name.
        """
        draw = self._draws[name] = self._draws.get(name, -1) + 1
        base = derive_seed(self.store.seed, "step", name, draw, self.index)
        with tf.device("CPU:0"):  # GPUs read seeds from the host's memory.
            step = tf.constant(0, tf.int64) if self.step is None else tf.cast(self.step, tf.int64)
            return tf.stack([tf.constant(base, tf.int64), step])

    def reaches(self, tensor: tf.Tensor) -> bool:
        # Tensors of inner graphs, such as branches of `tf.cond`, do not count.
        return tf.is_tensor(tensor) and getattr(tensor, "graph", None) is self._graph

    def refuse_inner_functions(self, label: str) -> None:
        # TensorFlow caches the trace of such a function: evaluation would run the training graph.
        graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        while graph is not self._graph and isinstance(graph, FuncGraph):
            if not isinstance(graph, ControlFlowFuncGraph):
                raise LayerError(
                    f"{label} must not be called in a tf.function ('{graph.name}') of the tower.",
                    fix="remove @tf.function: the tower is compiled as a whole",
                )
            graph = graph.outer_graph

    def as_tower_tensor(self, label: str, value: Any) -> tf.Tensor:
        tensor = value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)
        if not self.reaches(tensor):
            raise LayerError(
                f"{label} must not be in a branch, a loop or a tf.function of the tower.",
                got=f"a tensor of {getattr(tensor, 'graph', None)}",
                fix="return the tensor from the branch, loop or function, and make the call "
                "outside, in the tower",
            )
        return tensor

    def report(
        self, kind: str, path: str, value: tf.Tensor, rank: int | None = None, decay: float = 0.0
    ) -> None:
        if not 0 <= decay < 1:
            raise LayerError(f"summary.{kind}('{path}'): decay must be in [0, 1), got {decay}.")
        if not (self.is_main_training_tower if kind in HEAVY else self.is_training):
            return
        tensor = self.as_tower_tensor(f"summary.{kind}('{path}')", value)
        if rank is not None and tensor.shape.rank != rank:
            raise LayerError(
                f"summary.{kind}('{path}') needs a value of rank {rank}, got shape {tensor.shape}."
            )
        if any(known.name == path for known in self.summaries):
            raise LayerError(f"Names of summaries must be unique, but '{path}' is used twice.")
        self.summaries.append(Summary(kind, path, tensor, decay))

    def name_of(self, tensor: tf.Tensor) -> str:
        # The name of a tensor without the scope around the tower.
        return tensor.op.name.removeprefix(self._scope_around)

    @contextmanager
    def entered(self) -> Iterator[TowerContext]:
        """Make this the current context inside the `with` block, in which a tower is built."""
        token = _current.set(self)
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        # The name scope around the tower, such as that of the loop over steps.
        if self._graph is not None and (around := self._graph.get_name_scope()):
            self._scope_around = f"{around}/"
        try:
            with (
                layers_see_training(self.is_training),
                fresh_names(),
                found_as_global_step(self.store.global_step()),
                self.store.recording(self.index),
            ):
                yield self
                terms: Any = tf.compat.v1.losses.get_regularization_losses()
                self.regularizers.extend((term.op.name, term) for term in terms)
        finally:
            _current.reset(token)


_current: ContextVar[TowerContext | None] = ContextVar("tower", default=None)


def get_current_tower_context() -> TowerContext:
    """Return the context of the tower that is being built.

    Raises:
        LayerError: No tower function is running.
    """
    context = _current.get()
    if context is None:
        raise LayerError(
            "Layers and summaries must be called inside a tower function (ModelDesc.build_graph).",
            fix="use a trainer, a Predictor, or TowerFunction(func, specs)(…) in your own loop",
        )
    return context


def find_tower_context() -> TowerContext | None:
    """Return the context of the tower that is being built, or None."""
    return _current.get()


def get_global_step_var() -> tf.Tensor | tf.Variable:
    """Return the global step (int64 scalar) for schedules of `tf.compat.v1.train`.

    In a tower that is not in training, the global step is 0. Outside of towers, it is TensorFlow's
    global step variable, which trainers update.
    """
    context = find_tower_context()
    if context is None:
        return tf.compat.v1.train.get_or_create_global_step()
    return tf.constant(0, tf.int64) if context.step is None else context.step
