"""Context of the tower that is being built, for its tower function."""

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

HEAVY = ("histogram", "image")


@dataclass(frozen=True)
class Summary:
    """A value for monitors. `kind` is scalar, moving_average, histogram or image."""

    kind: str
    name: str
    value: tf.Tensor
    decay: float = 0.0


@dataclass
class TowerContext:
    """One call of a tower function.

    Attributes:
        store: Holds the layers and variables, over all calls.
        is_training: False in evaluation, prediction and export.
        index: Number of this replica, from 0.
        total: Number of replicas.
        step: Global step as an int64 scalar while training, otherwise None.
        outputs: Named output tensors.
        summaries: What `towerpack.nn.summary` collected.
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
                f"TowerContext got the name {self.store!r} in place of a VariableStore.",
                fix="call the model by a TowerFunction or a Predictor, which make the context",
            )

    @property
    def mirrored(self) -> bool:
        """Whether each replica has its own copy of the variables, rather than share them."""
        replica: Any = tf.distribute.get_replica_context()
        return self.total > 1 and tf.distribute.has_strategy() and replica is not None

    @property
    def is_main_training_tower(self) -> bool:
        """Whether this is the first replica while training: it reports pictures."""
        return self.is_training and self.index == 0

    def step_seed(self, name: str) -> tf.Tensor:
        """Return a seed for `tf.random.stateless_*`: int64 of shape [2].

        It is a pure function of the run's seed, `name`, the replica, the global step and the number
        of earlier requests of this name. So a resumed run draws what the uninterrupted run draws.
        """
        draw = self._draws[name] = self._draws.get(name, -1) + 1
        base = derive_seed(self.store.seed, "step", name, draw, self.index)
        step = tf.constant(0, tf.int64) if self.step is None else tf.cast(self.step, tf.int64)
        return tf.stack([tf.constant(base, tf.int64), step])

    def reaches(self, tensor: tf.Tensor) -> bool:
        """Return whether a tensor belongs to the tower itself, not to a branch of `tf.cond`."""
        return tf.is_tensor(tensor) and getattr(tensor, "graph", None) is self._graph

    def refuse_inner_functions(self, what: str) -> None:
        """Refuse to build a layer in a `tf.function` inside of the tower.

        TensorFlow traces such a function twice and then never again: evaluation would run what was
        traced for training.
        """
        graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        while graph is not self._graph and isinstance(graph, FuncGraph):
            if not isinstance(graph, ControlFlowFuncGraph):
                raise LayerError(
                    f"{what} is called in a tf.function inside of the tower.",
                    got=f"the function '{graph.name}'",
                    fix="take @tf.function away: the tower is compiled as a whole",
                )
            graph = graph.outer_graph

    def own(self, what: str, value: Any) -> tf.Tensor:
        """Return `value` as a tensor of the tower itself. Refuse tensors of inner graphs."""
        tensor = value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)
        if not self.reaches(tensor):
            raise LayerError(
                f"{what} is inside of a branch, a loop or a tf.function of the tower.",
                got=f"a tensor of {getattr(tensor, 'graph', None)}",
                fix="return the tensor from there, and name it in the tower itself",
            )
        return tensor

    def report(
        self, kind: str, path: str, value: tf.Tensor, rank: int | None = None, decay: float = 0.0
    ) -> None:
        """Add a summary, in training. Histograms and images are taken from the first replica."""
        if not 0 <= decay < 1:
            raise LayerError(f"summary.{kind}('{path}'): decay {decay} is not in [0, 1).")
        if not (self.is_main_training_tower if kind in HEAVY else self.is_training):
            return
        tensor = self.own(f"summary.{kind}('{path}')", value)
        if rank is not None and tensor.shape.rank != rank:
            raise LayerError(
                f"summary.{kind}('{path}') got a value of the wrong rank.",
                got=f"shape {tensor.shape}",
                expected=f"rank {rank}",
            )
        if any(known.name == path for known in self.summaries):
            raise LayerError(f"A summary '{path}' exists already in this tower.")
        self.summaries.append(Summary(kind, path, tensor, decay))

    def name_of(self, tensor: tf.Tensor) -> str:
        """Return the name of a tensor in the graph, without the scope around the tower."""
        return tensor.op.name.removeprefix(self._scope_around)

    @contextmanager
    def entered(self) -> Iterator[TowerContext]:
        """Build a tower inside: layers, scopes and variables use this context."""
        token = _current.set(self)
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        # That of the loop over steps, for example.
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
    """Return the tower that is being built. Outside of a tower function, raise a `LayerError`."""
    context = _current.get()
    if context is None:
        raise LayerError(
            "There is no tower here.",
            expected="to be called inside a tower function, such as ModelDesc.build_graph",
            fix="use a trainer, a Predictor, or TowerFunction(func, specs)(…) in your own loop",
        )
    return context


def find_tower_context() -> TowerContext | None:
    """Return the tower that is being built, or None."""
    return _current.get()


def get_global_step_var() -> tf.Tensor | tf.Variable:
    """Return the global step, for schedules of `tf.compat.v1.train`: int64 scalar.

    In a tower it is 0 outside of training. Elsewhere it is TensorFlow's variable, which trainers
    move.
    """
    context = find_tower_context()
    if context is None:
        return tf.compat.v1.train.get_or_create_global_step()
    return tf.constant(0, tf.int64) if context.step is None else context.step
