"""Access to private names of Keras. Verified on Keras 3.15.

If a Keras release changes these names, adapt this file and `tests/unit/_keras/test_adapter.py`.
"""

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
from keras.src.backend import compute_output_spec, cudnn_ok, set_keras_mask
from keras.src.backend import get_keras_mask as get_keras_mask
from keras.src.backend.common import KerasVariable, global_state
from keras.src.backend.common.name_scope import current_path
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.layers.layer import CallContext
from keras.src.utils.naming import to_snake_case
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

_original_value: Any = KerasVariable.value
reading: ContextVar[Any] = ContextVar("reading", default=None)


def variable_path(name: str = "") -> str:
    """Return the path of the Keras layer that is being built, or `''` outside of layers.

    If a layer has no `build` method, Keras builds it with a trial call and creates the variables
    later. The path is then that of the layer whose variable `name` is waiting.
    """
    if not in_stateless_scope():
        waiting: Any = global_state.get_global_attribute("uninitialized_variables", ())
        for variable in waiting:
            if variable._value is None and variable.name == name:
                return variable.path.rpartition("/")[0]
    return current_path()


def has_cudnn() -> bool:
    """Return whether Keras would compute an LSTM with cuDNN here. XLA cannot compile it."""
    fits = cudnn_ok(tf.tanh, tf.sigmoid, unroll=False, use_bias=True)
    return fits and not GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def layers_being_built() -> list[keras.layers.Layer]:
    """Return the Keras layers that are being built, the outermost first."""
    stack: Any = global_state.get_global_attribute("name_scope_stack", ())
    return [entry.caller for entry in stack if isinstance(entry.caller, keras.layers.Layer)]


def forget_losses(layers: Iterable[keras.layers.Layer]) -> None:
    """Clear the losses from activity regularizers and `add_loss` of an earlier trace.

    Keras clears them when an outermost layer is called, but a tower function is not a layer.
    """
    for layer in layers:
        layer._clear_losses()


def automatic_names(layer: keras.layers.Layer) -> set[str]:
    """Return the names of sublayers and seed generators that Keras chose, such as `dense_7`."""
    names = set()
    for inner in layer._flatten_layers(include_self=False):
        base = to_snake_case(type(inner).__name__)
        # `Bidirectional` adds a prefix to the numbered name.
        if re.fullmatch(rf"(forward_|backward_)?{re.escape(base)}(_\d+)?", inner.name):
            names.add(inner.name)
    paths = (variable.path.split("/") for variable in layer.variables)
    generators = (part for path in paths for part in path if part.startswith("seed_generator"))
    return names | set(generators)


def layers_see_training(training: bool) -> AbstractContextManager[None]:
    """Use `training` as the default for the `training` argument of Keras layers in the block.

    Keras takes the default from an outer layer. A tower function is not a layer, so otherwise
    `keras.layers.Dropout` in a tower would never drop values.
    """
    context = CallContext(entry_layer=object())
    context.set_value("training", training)
    return _global("current_call_ctx", context)


def fresh_names(counts: Mapping[str, int] | None = None) -> AbstractContextManager[None]:
    """Restart Keras's numbering of layer names (`dense_1`) in the block, or continue from `counts`.

    Keras numbers names per process. Without this, a second trace would rename the same layers.
    """
    return _global("object_name_uids", collections.defaultdict(int, counts or {}))


def name_counts() -> dict[str, int]:
    """Return how many names Keras has numbered so far, for each kind of layer."""
    return dict(global_state.get_global_attribute("object_name_uids") or {})


@contextmanager
def _global(name: str, value: Any) -> Iterator[None]:
    before = global_state.get_global_attribute(name)
    global_state.set_global_attribute(name, value)
    try:
        yield
    finally:
        global_state.set_global_attribute(name, before)


@contextmanager
def seeded_initializers(seed: int) -> Iterator[None]:
    """Derive the seeds of Keras initializers that are created in the block from `seed`.

    Keras draws missing seeds from Python's global random generator. Its state is restored.
    """
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def inner_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return a layer and all its sublayers, in the same order in every process."""
    return layer._flatten_layers()


def variables_of(layer: keras.layers.Layer) -> list[Any]:
    """Return all variables of a layer, with the states of stateful RNNs, which Keras omits."""
    rnns = [inner for inner in inner_layers(layer) if isinstance(inner, keras.layers.RNN)]
    states: list[Any] = [v for rnn in rnns for v in keras.tree.flatten(rnn.states)]
    return [*layer.variables, *(v for v in states if isinstance(v, keras.Variable))]


def metrics_of(layer: keras.layers.Layer) -> list[keras.metrics.Metric]:
    return [metric for inner in inner_layers(layer) for metric in cast("Any", inner)._metrics]


def copied_optimizer(optimizer: keras.optimizers.Optimizer) -> Any:
    """Return a new optimizer with the same settings.

    Also copies `exclude_from_weight_decay`, which Keras's `get_config` omits.
    """
    copy: Any = type(optimizer).from_config(cast("Any", optimizer.get_config()))
    new, old = (getattr(o, "inner_optimizer", o) for o in (copy, optimizer))
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
        if hasattr(old, name):
            setattr(new, name, getattr(old, name))
    return copy


def masked(value: Any, mask: Any) -> Any:
    """Return a tensor with a Keras mask. A scalar `mask` means no mask."""
    tensor = tf.convert_to_tensor(value)
    if np.ndim(mask):
        set_keras_mask(tensor, tf.convert_to_tensor(mask))
    return tensor


def built_on(function: Callable[..., Any], specs: Iterable[tf.TensorSpec]) -> Any:
    """Call `function` on placeholder tensors, to build the layers, losses and metrics it uses.

    Nothing is computed and no variable changes. The results are symbolic tensors.
    """
    normalization_reads_variables()
    return compute_output_spec(
        lambda: function(*[tf.compat.v1.placeholder(s.dtype, s.shape) for s in specs])
    )


@contextmanager
def stateless(model: keras.Model) -> Iterator[None]:
    """Prevent variable updates in the block, and keep `model.losses`, which Keras would drop.

    A model without losses gets a loss of 0, so that models with only `add_loss` can be built.
    """
    layer: Any = model
    layer._losses_override = list(model.losses) or [tf.zeros([])]
    try:
        with keras.StatelessScope():
            yield
    finally:
        layer._losses_override = []


@contextmanager
def transformed_variables(transforms: Any) -> Iterator[None]:
    """Apply functions to trainable Keras variables whenever this thread reads them in the block.

    Each function takes the `tf.Variable` and the result of the previous function. None disables
    all functions. Keras has no hook for this, so the first use replaces `KerasVariable.value`.
    """
    if transforms:
        cast("Any", KerasVariable).value = property(_read)
    token = reading.set(transforms)
    try:
        yield
    finally:
        reading.reset(token)


def transformed_value(variable: tf.Variable, transforms: Any) -> Any:
    value: Any = variable
    for transform in transforms if transforms and variable.trainable else ():
        value = transform(variable, value)
    return value


def _read(variable: Any) -> Any:
    transforms, value = reading.get(), variable._value
    if not transforms or value is None or in_stateless_scope():
        return _original_value.fget(variable)
    with transformed_variables(None):  # The functions read plain values.
        return variable._maybe_autocast(transformed_value(value, transforms))


def freezable_batch_norms(is_frozen: Callable[[keras.layers.Layer], bool]) -> None:
    """Patch Keras's batch normalization to use its moving averages while `is_frozen(layer)`.

    `trainable=False` would also freeze `gamma` and `beta`, and would change the user's layer.
    """

    def wrapped(call: Any) -> Callable[..., Any]:
        def call_unless_frozen(
            self: Any, inputs: Any, training: bool | None = None, mask: Any = None
        ) -> Any:
            return call(self, inputs, training=training and not is_frozen(self), mask=mask)

        return call_unless_frozen

    _replace_method(keras.layers.BatchNormalization, "call", wrapped)


def normalization_reads_variables() -> None:
    """Patch `keras.layers.Normalization` to read its statistics from the variables in each call.

    Keras reads the variables only when the layer is built, adapted or loaded. A graph would store
    the statistics as constants that no checkpoint changes, or could not use them at all.
    """
    kind: Any = keras.layers.Normalization

    def wrapped(call: Any) -> Callable[..., Any]:
        def read(self: Any, inputs: Any) -> Any:
            if not self.built:
                return call(self, inputs)
            if self.input_mean is not None:
                with tf.init_scope():
                    kind.build(self, self._build_input_shape)  # Creates no variables.
                return call(self, inputs)
            before = self.mean, self.variance
            self.finalize_state()
            try:
                return call(self, inputs)
            finally:
                if not tf.executing_eagerly():
                    self.mean, self.variance = before

        return read

    _replace_method(kind, "call", wrapped)


def _replace_method(kind: Any, name: str, wrapped: Callable[[Any], Callable[..., Any]]) -> None:
    method = getattr(kind, name)
    if not hasattr(method, "is_ours"):
        replacement: Any = functools.wraps(method)(wrapped(method))
        replacement.is_ours = True
        setattr(kind, name, replacement)


def moving_mean_of(layer: Any) -> Any:
    """Return the moving mean of a batch normalization layer as a `tf.Variable`."""
    return layer.moving_mean._value


def own_variables(layer: keras.layers.Layer) -> list[Any]:
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def unseeded_initializers(layer: keras.layers.Layer) -> dict[str, Any]:
    """Return the initializers of a layer that Keras seeded, by attribute name."""
    kind = keras.initializers.Initializer
    return {
        role.strip("_"): value
        for role, value in vars(layer).items()
        if isinstance(value, kind) and getattr(value, "_init_seed", 0) is None
    }


def seed_generators(layer: keras.layers.Layer) -> list[keras.random.SeedGenerator]:
    return list(layer._seed_generators)


def is_fresh(generator: keras.random.SeedGenerator) -> bool:
    """Return whether a seed generator has a seed from Keras and has not been used yet."""
    state: Any = generator.state
    return generator._initial_seed is None and int(state.numpy()[1]) == 0


def set_seed(drawing: Any, seed: int) -> None:
    if isinstance(drawing, keras.random.SeedGenerator):
        drawing._initial_seed = seed
        cast("Any", drawing.state).assign([seed, 0])
    else:
        drawing._init_seed = drawing.seed = seed


def fold_replicas_into_seeds(index_of_replica: Callable[[], int]) -> None:
    """Patch Keras seed generators to draw different numbers on each replica.

    All replicas have the same generator state, so their dropout masks would be identical. The
    numbers of replica 0 do not change.
    """

    def wrapped(original: Any) -> Callable[..., Any]:
        def next_seed(self: keras.random.SeedGenerator, ordered: bool = True) -> Any:
            seed = original(self, ordered=ordered)
            index = index_of_replica()
            # The seed is [seed, counter]; an odd multiplier keeps the replicas apart.
            offset = [index * 0x9E3779B9 % 2**31, 0]
            return seed + tf.constant(offset, seed.dtype) if index else seed

        return next_seed

    _replace_method(keras.random.SeedGenerator, "next", wrapped)


def variable_alias(variable: object, path: str) -> keras.Variable:
    """Return a Keras variable that shares the memory of a `tf.Variable` under another path.

    Args:
        variable: `tf.Variable`.
        path: New path, such as 'conv0/kernel'.
    """
    *scopes, name = path.split("/")
    with ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(variable, name=name, trainable=True)
