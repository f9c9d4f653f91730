"""The one place that touches what Keras does not export.

Each function names what it needs and why; a Keras release that moves these breaks here and in
`tests/unit/_keras/test_adapter.py`, nowhere else. Verified on Keras 3.15.
"""

from __future__ import annotations

import collections
import functools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend import compute_output_spec, set_keras_mask
from keras.src.backend import get_keras_mask as get_keras_mask
from keras.src.backend.common import KerasVariable, global_state
from keras.src.backend.common.name_scope import current_path
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.layers.layer import CallContext
from keras.src.utils.naming import to_snake_case

_plain: Any = KerasVariable.value
reading: ContextVar[Any] = ContextVar("reading", default=None)


def variable_path(name: str = "") -> str:
    """The path of Keras layers that are being built right now, `''` outside of any.

    Keras builds layers that have no `build` of their own by a trial call, and makes the variables
    of those inside when it is over; then the path is that of the variable.

    Args:
        name: Of the variable that is being made.
    """
    if not in_stateless_scope():
        waiting: Any = global_state.get_global_attribute("uninitialized_variables", ())
        for variable in waiting:
            if variable._value is None and variable.name == name:
                return variable.path.rpartition("/")[0]
    return current_path()


def layers_being_built() -> list[keras.layers.Layer]:
    """The Keras layers in which a variable is being made right now, the outermost first.

    A layer that is made inside a tower is known to nobody else, and only it knows whether it is
    frozen.
    """
    stack: Any = global_state.get_global_attribute("name_scope_stack", ())
    return [entry.caller for entry in stack if isinstance(entry.caller, keras.layers.Layer)]


def forget_losses(layers: Iterable[keras.layers.Layer]) -> None:
    """Drop the losses that layers have collected from activity regularizers and `add_loss`.

    Keras does it where a call enters its outermost layer, which for Keras is not ours: see
    `layers_see_training`. Otherwise `model.losses` would hold tensors of an earlier graph.
    """
    for layer in layers:
        layer._clear_losses()


def automatic_names(layer: keras.layers.Layer) -> set[str]:
    """Those names below a layer that Keras chose (`dense_7`), not the user."""
    names = set()
    for inner in layer._flatten_layers(include_self=False):
        base = to_snake_case(type(inner).__name__)
        # `Bidirectional` puts a word before the name that Keras has counted.
        if re.fullmatch(rf"(forward_|backward_)?{re.escape(base)}(_\d+)?", inner.name):
            names.add(inner.name)
    paths = (variable.path.split("/") for variable in layer.variables)
    generators = (part for path in paths for part in path if part.startswith("seed_generator"))
    return names | set(generators)


def layers_see_training(training: bool) -> AbstractContextManager[None]:
    """Make every Keras layer called inside run with `training`, unless it is told otherwise.

    Keras takes the flag from an outer layer's call; a tower function is not a layer, so without
    this a `keras.layers.Dropout` inside a tower would silently never drop.
    """
    context = CallContext(entry_layer=object())
    context.set_value("training", training)
    return _global("current_call_ctx", context)


def fresh_names(counts: Mapping[str, int] | None = None) -> AbstractContextManager[None]:
    """Number automatic Keras names (`dense`, `dense_1`) from the start, in each trace alike.

    Keras counts them for the whole process; a second trace of one tower would give other names
    to the same layers.

    Args:
        counts: Go on from these `name_counts()` instead.
    """
    return _global("object_name_uids", collections.defaultdict(int, counts or {}))


def name_counts() -> dict[str, int]:
    """Number of automatic names of each kind that Keras has given (since `fresh_names`)."""
    return dict(global_state.get_global_attribute("object_name_uids") or {})


@contextmanager
def _global(name: str, value: Any) -> Iterator[None]:
    """Let Keras have another value of something global inside."""
    before = global_state.get_global_attribute(name)
    global_state.set_global_attribute(name, value)
    try:
        yield
    finally:
        global_state.set_global_attribute(name, before)


@contextmanager
def seeded_initializers(seed: int) -> Iterator[None]:
    """Draw the seeds of Keras initialisers that were given none from `seed`.

    Keras draws them from Python's global generator, which is put back as it was.
    """
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def inner_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """A layer and all below it, in an order that each process repeats."""
    return layer._flatten_layers()


def variables_of(layer: keras.layers.Layer) -> list[Any]:
    """Return all variables of a layer, with the states of stateful RNNs, which Keras leaves out."""
    rnns = [inner for inner in inner_layers(layer) if isinstance(inner, keras.layers.RNN)]
    states: list[Any] = [v for rnn in rnns for v in keras.tree.flatten(rnn.states)]
    return [*layer.variables, *(v for v in states if isinstance(v, keras.Variable))]


def metrics_of(layer: keras.layers.Layer) -> list[keras.metrics.Metric]:
    """Return the metrics that a layer and those below it hold: their own calls update them."""
    return [metric for inner in inner_layers(layer) for metric in cast("Any", inner)._metrics]


def copied_optimizer(optimizer: keras.optimizers.Optimizer) -> Any:
    """Return a new optimizer with the settings of another one.

    Keras's configuration leaves out what `exclude_from_weight_decay` has set.
    """
    copy: Any = type(optimizer).from_config(cast("Any", optimizer.get_config()))
    new, old = (getattr(o, "inner_optimizer", o) for o in (copy, optimizer))
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
        if hasattr(old, name):
            setattr(new, name, getattr(old, name))
    return copy


def masked(value: Any, mask: Any) -> Any:
    """Return a tensor that carries a mask, as the output of a Keras layer does.

    Args:
        value: A tensor or an array.
        mask: The mask, or a scalar for a tensor without one.
    """
    tensor = tf.convert_to_tensor(value)
    if np.ndim(mask):
        set_keras_mask(tensor, tf.convert_to_tensor(mask))
    return tensor


def built_on(function: Callable[..., Any], specs: Iterable[tf.TensorSpec]) -> Any:
    """Call a function on placeholders: layers, losses and metrics that it uses are built after it.

    Nothing is computed, and no variable changes. Keras's `fit` does so before its first step.

    Returns:
        What the function gives, with symbolic tensors.
    """
    normalization_reads_variables()
    return compute_output_spec(
        lambda: function(*[tf.compat.v1.placeholder(s.dtype, s.shape) for s in specs])
    )


@contextmanager
def stateless(model: keras.Model) -> Iterator[None]:
    """Let no variable change inside; `model.losses` stay those that its call has collected.

    Keras forgets them where a scope without state is entered after the call. Without any there is
    one of 0, so that a model of `add_loss` alone can be built.
    """
    layer: Any = model
    layer._losses_override = list(model.losses) or [tf.zeros([])]
    try:
        with keras.StatelessScope():
            yield
    finally:
        layer._losses_override = []


@contextmanager
def transformed_variables(ways: Any) -> Iterator[None]:
    """Let this thread read trainable Keras variables in some `ways`; None: as they are.

    Keras has no hook for it that leaves layers free to make variables and to change them. Its
    property is ours from the first use on.

    Args:
        ways: Functions of the `tf.Variable` and of what the one before has made of it.
    """
    if ways:
        cast("Any", KerasVariable).value = property(_read)
    token = reading.set(ways)
    try:
        yield
    finally:
        reading.reset(token)


def transformed_value(variable: tf.Variable, ways: Any) -> Any:
    """Value of a variable after all the functions, in turn."""
    value: Any = variable
    for way in ways if ways and variable.trainable else ():
        value = way(variable, value)
    return value


def _read(variable: Any) -> Any:
    ways, value = reading.get(), variable._value
    if not ways or value is None or in_stateless_scope():
        return _plain.fget(variable)
    with transformed_variables(None):  # What the functions read themselves.
        return variable._maybe_autocast(transformed_value(value, ways))


def freezable_batch_norms(is_frozen: Callable[[keras.layers.Layer], bool]) -> None:
    """Let each call of a batch normalisation in training ask first whether it is frozen.

    Keras has no hook for it: `trainable=False` would also be that of `gamma` and `beta`, and would
    stay on the user's layer. Its method is ours from the first use on.
    """
    kind: Any = keras.layers.BatchNormalization
    call = kind.call
    if hasattr(call, "asks"):
        return

    @functools.wraps(call)
    def ask(self: Any, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        return call(self, inputs, training=training and not is_frozen(self), mask=mask)

    cast("Any", ask).asks = True
    kind.call = ask


def normalization_reads_variables() -> None:
    """Make each call of `keras.layers.Normalization` take its statistics from the variables.

    Keras computes tensors from the variables when the layer is built, adapted or loaded. Graphs
    would hold them as constants, which no checkpoint changes; and tensors that were made while a
    graph was traced cannot be used in another one. Its method is ours from the first use on.
    """
    kind: Any = keras.layers.Normalization
    call = kind.call
    if hasattr(call, "reads"):
        return

    @functools.wraps(call)
    def read(self: Any, inputs: Any) -> Any:
        if not self.built:
            return call(self, inputs)
        if self.input_mean is not None:
            with tf.init_scope():
                kind.build(self, self._build_input_shape)  # Makes no variables.
            return call(self, inputs)
        before = self.mean, self.variance
        self.finalize_state()
        try:
            return call(self, inputs)
        finally:
            if not tf.executing_eagerly():
                self.mean, self.variance = before

    cast("Any", read).reads = True
    kind.call = read


def moving_mean_of(layer: Any) -> Any:
    """The `tf.Variable`, even where Keras reads another value for it (`stateless_call`)."""
    return layer.moving_mean._value


def own_variables(layer: keras.layers.Layer) -> list[Any]:
    """The weights of a layer itself, without those of layers below it."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def unseeded_initializers(layer: keras.layers.Layer) -> dict[str, Any]:
    """A layer's initializers whose seeds Keras has drawn, by the attribute."""
    found = {role.strip("_"): value for role, value in vars(layer).items()}
    kind = keras.initializers.Initializer
    return {
        role: value
        for role, value in found.items()
        if isinstance(value, kind) and getattr(value, "_init_seed", 0) is None
    }


def seed_generators(layer: keras.layers.Layer) -> list[keras.random.SeedGenerator]:
    """The seed generators of a layer itself."""
    return list(layer._seed_generators)


def is_fresh(generator: keras.random.SeedGenerator) -> bool:
    """True if Keras has drawn the generator's seed, and nothing has been drawn from it."""
    state: Any = generator.state
    return generator._initial_seed is None and int(state.numpy()[1]) == 0


def set_seed(drawing: Any, seed: int) -> None:
    """Give an initializer or a seed generator a seed in place of the one that Keras drew."""
    if isinstance(drawing, keras.random.SeedGenerator):
        drawing._initial_seed = seed
        cast("Any", drawing.state).assign([seed, 0])
    else:
        drawing._init_seed = drawing.seed = seed


def fold_replicas_into_seeds(index_of_replica: Callable[[], int]) -> None:
    """Make what Keras's seed generators draw differ from replica to replica.

    Their state is the same in all of them, as that of any variable, so that all replicas would drop
    the same units. From the first call on it holds for the whole process.

    Args:
        index_of_replica: 0 leaves the draw as it is.
    """
    original: Any = keras.random.SeedGenerator.next
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def next_seed(self: keras.random.SeedGenerator, ordered: bool = True) -> Any:
        seed = original(self, ordered=ordered)
        index = index_of_replica()
        if not index:
            return seed
        # [seed, counter]: an odd multiplier keeps the replicas apart.
        return seed + tf.constant([index * 0x9E3779B9 % 2**31, 0], seed.dtype)

    keras.random.SeedGenerator.next = next_seed


def variable_alias(variable: object, path: str) -> keras.Variable:
    """A Keras variable with our path around an existing `tf.Variable`, sharing its memory."""
    *scopes, name = path.split("/")
    with ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(variable, name=name, trainable=True)
