"""Layers and variables of a tower by name, which all calls of the tower share.

A tower function runs many times: per replica, for evaluation, for export. The first call creates
layers and variables, and later calls reuse them. The store holds three kinds of variables:

* variables of named layers (`Conv2D('conv0', …)`), under the layer's scoped name;
* variables that other code creates inside the tower (Keras layers, `tf.Variable`). A variable
  creator records them under names made of scope, Keras path and variable name;
* variables of Keras layers and models that the user created outside, on the model object or in the
  tower function's closure, under the name of the attribute.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import keras
import tensorflow as tf
from tensorflow.python.ops import variable_scope

from towerpack._core.errors import LayerError
from towerpack._core.logs import get_logger
from towerpack._core.naming import unique
from towerpack._core.randomness import derive_seed
from towerpack._keras import owned
from towerpack._keras.adapter import (
    forget_losses,
    layers_being_built,
    normalization_reads_variables,
    seeded_initializers,
    transformed_variables,
    variable_path,
)
from towerpack._keras.seeding import seed_layers
from towerpack.nn._global_step import find_global_step, new_step
from towerpack.nn.compat_collections import CompatVariables, collect, fresh_collections
from towerpack.nn.initial_values import check_fits, lifted, run_seeded, seeded_graph
from towerpack.nn.scopes import full_name, is_reusing, joined

_LOG = get_logger(__name__)
_KEYS = tf.compat.v1.GraphKeys
_OF_LAYERS = [_KEYS.GLOBAL_VARIABLES, _KEYS.MODEL_VARIABLES]


@dataclass
class _NamedLayer:
    layer: keras.layers.Layer
    config: Mapping[str, Any]
    input_shape: tuple[int | None, ...]


class _Calling(threading.local):
    """State of this thread's current call, because other threads may call the same tower."""

    # Names of variables that this call has created or reused; None outside of calls.
    claimed: set[str] | None = None
    creating: bool = False
    layer: str | None = None


class VariableStore:
    """Variables of one model by name.

    Args:
        seed: Seed of initial values, which depend only on the seed and the layers' names.
        find_owners: Returns the objects by name that may hold Keras layers, models and variables
            created outside of the tower.
        dtype_policy: Keras dtype policy of named layers, for example `mixed_bfloat16`.

    Raises:
        LayerError: TensorFlow does not run eagerly.

    Attributes:
        resumed: Whether a checkpoint replaces the initial values, which are then not logged.
    """

    resumed: bool = False

    def __init__(
        self,
        *,
        seed: int = 0,
        find_owners: Callable[[], Mapping[str, object]] = dict,
        dtype_policy: str | None = None,
    ) -> None:
        _check_eager()
        normalization_reads_variables()
        self.seed = seed
        self.dtype_policy = dtype_policy
        self._find_owners = find_owners
        self._layers: dict[str, _NamedLayer] = {}
        self._inside: dict[str, tf.Variable] = {}
        self._outside: dict[str, tf.Variable] = {}
        # Keras layers created inside the tower: only they know whether they are frozen.
        self._inside_layers: dict[int, keras.layers.Layer] = {}
        # Variables that are not trained, although they say so.
        self.skipped: dict[int, tf.Variable] = {}
        # Warnings that an earlier call of the tower has logged.
        self.warned: set[str] = set()
        self._calling = _Calling()
        self._prepared = False
        self._step: Any = None

    @transformed_variables(None)
    def named_variables(self) -> dict[str, tf.Variable]:
        """Return all known variables by name, in an order that is the same in each process."""
        variables: dict[str, tf.Variable] = {}
        seen: set[int] = set()
        outside = owned.find_variables(self._find_owners())
        for source in (outside, self._by_layer(), self._inside, self._outside):
            for name, variable in source.items():
                if id(variable) not in seen:
                    seen.add(id(variable))
                    name = unique(name, variables) if name in variables else name
                    variables[name] = variable
        return variables

    def names_by_id(self) -> Callable[[tf.Variable], str | None]:
        """Return a function that returns the name of a variable, or None. The names are cached."""
        names: dict[int, str] = {}

        def name_of(variable: tf.Variable) -> str | None:
            if id(variable) not in names:
                names.update({id(v): name for name, v in self.named_variables().items()})
            return names.get(id(variable))

        return name_of

    @transformed_variables(None)
    def trainable(self) -> dict[str, tf.Variable]:
        """Return the variables to train: trainable variables outside of frozen Keras layers."""
        frozen = self.skipped.keys() | owned.frozen_ids(self._holders())
        return {
            name: variable
            for name, variable in self.named_variables().items()
            if variable.trainable and id(variable) not in frozen
        }

    def bare_variables(self) -> dict[str, tf.Variable]:
        """Return the variables that the program created outside of layers and `get_variable`."""
        held = {id(cast("Any", v).value) for layer in self.keras_layers() for v in layer.variables}
        held |= {id(variable) for variable in self._inside.values()}
        return {n: v for n, v in self.named_variables().items() if id(v) not in held}

    def layers(self) -> dict[str, keras.layers.Layer]:
        """Return the named layers created so far."""
        return {name: entry.layer for name, entry in self._layers.items()}

    def keras_layers(self) -> list[keras.layers.Layer]:
        """Return the Keras layers of the tower and of its function's owner."""
        return owned.keras_layers(self._holders())

    def _holders(self) -> dict[str, object]:
        layers = *self.layers().values(), *self._inside_layers.values()
        holders = *self._find_owners().values(), *layers
        return {str(i): holder for i, holder in enumerate(holders)}

    def adopt(self, variables: list[tf.Variable]) -> None:
        """Add variables that a trace has read and that the store does not know yet.

        Args:
            variables: Variables of the trace.
        """
        # The global step belongs to the run.
        stored = [*self.named_variables().values(), self.global_step()]
        known = {id(component) for v in stored for component in components_of(v)}
        for variable in variables:
            if id(variable) not in known:
                name = variable.name.split(":")[0] or "variable"
                self._outside[unique(name, [*self._inside, *self._outside])] = variable

    def replace(self, make: Callable[[str, tf.Variable], tf.Variable]) -> list[str]:
        """Replace all variables except those that only the user's objects hold.

        Args:
            make: Returns the new variable for a name and an old variable.

        Returns:
            Names of the variables that were not replaced, which the user's objects hold.
        """
        holders: dict[int, list[keras.Variable]] = {}
        for holder in owned.keras_variables(self._holders()):
            holders.setdefault(id(cast("Any", holder).value), []).append(holder)
        created = {id(v): name for name, v in self._inside.items()}
        staying = []
        for name, variable in self.named_variables().items():
            key = id(variable)
            if key not in holders and created.get(key) != name:
                staying.append(name)
                continue
            new = make(name, variable)
            for holder in holders.get(key, ()):
                cast("Any", holder)._value = new
            if key in created:
                self._inside[created[key]] = new
            if key in self.skipped:
                self.skipped[id(new)] = new
        return staying

    def global_step(self) -> Any:
        """Return the run's global step, or a variable of value 0 if there is no run."""
        if self._step is None:
            known = find_global_step()
            with self._passing_through():
                self._step = new_step() if known is None else known
        return self._step

    def _by_layer(self) -> dict[str, tf.Variable]:
        return {
            _below(scope, entry.layer, variable): cast("Any", variable).value
            for scope, entry in self._layers.items()
            for variable in entry.layer.variables
        }

    def layer(
        self,
        make: Callable[..., keras.layers.Layer],
        input_shape: tuple[int | None, ...],
        **config: Any,
    ) -> keras.layers.Layer:
        """Return the Keras layer of the current scope. The first call creates and builds it.

        Args:
            make: Keras layer class, or a function that takes `name=`, `dtype=` and `config`.
            input_shape: Static shape; the batch dimension may be None.
            **config: Arguments of `make`.

        Raises:
            LayerError: The layer of the scope has other arguments or another input shape.
        """
        scope = full_name()
        entry = self._layers.get(scope)
        if entry is None:
            # `init_scope` leaves the traced graph, so that the variables outlive it (and are
            # mirrored if a distribution strategy is active).
            with (
                tf.init_scope(),
                self._passing_through(scope),
                seeded_initializers(self.layer_seed("initializers")),
            ):
                layer = make(name=scope.replace("/", "."), dtype=self.dtype_policy, **config)
                layer.build(input_shape)
            # If another thread has created the layer in the meantime, use that layer.
            entry = self._layers.setdefault(scope, _NamedLayer(layer, config, input_shape))
        known = entry.input_shape
        if input_shape[1:] != known[1:] and len(input_shape) == len(known):
            # Accept images of another size if the layer's variables would be the same.
            with tf.Graph().as_default(), self._passing_through():
                other = make(name="other", dtype=self.dtype_policy, **config)
                other.build(input_shape)
            if [v.shape for v in other.variables] == [v.shape for v in entry.layer.variables]:
                input_shape = known
        _check_same(scope, entry, config, input_shape)
        with transformed_variables(None):
            for variable in entry.layer.variables:
                self._collect(cast("Any", variable).value, _OF_LAYERS, trainable=True)
        return entry.layer

    def layer_seed(self, role: str) -> int:
        """Return a seed of 31 bits for an initial value of the layer in the current scope.

        Args:
            role: Name of the initial value, such as 'kernel'.
        """
        return derive_seed(self.seed, "init", full_name(), role) >> 32

    @contextmanager
    def recording(self, index: int = 0) -> Iterator[None]:
        """Context manager that records created variables and reuses those of earlier calls.

        Args:
            index: Index of the replica, which draws separate random numbers.
        """
        self._prepare()
        before, self._calling.claimed = self._calling.claimed, set()
        forget_losses(self.keras_layers())
        owners = self._find_owners()
        outside = [*owned.find_variables(owners).values(), *self._outside.values()]
        frozen = owned.frozen_ids(owners)
        try:
            with (
                seeded_initializers(derive_seed(self.seed, "initializers")),
                seeded_graph(derive_seed(self.seed, "graph", *([index] if index else []))),
                fresh_collections(),
                # TensorFlow's own store would refuse the names of an earlier call.
                variable_scope.with_variable_store(CompatVariables()),
                tf.variable_creator_scope(self._create),
            ):
                for variable in outside:
                    self._collect(variable, None, trainable=id(variable) not in frozen)
                yield
        finally:
            self._calling.claimed = before

    def _prepare(self) -> None:
        if self._prepared:
            return
        self._prepared = True
        owners = self._find_owners()
        for name, variable in owned.find_variables(owners).items():
            if getattr(variable, "_in_graph_mode", False):
                raise LayerError(
                    f"The variable '{name}' of the model must not be created in a tf.Graph.",
                    fix="create the model without `with tf.Graph().as_default()`",
                )
        with tf.init_scope():
            redrawn, unchanged = seed_layers(owners, self.seed)
        if self.resumed:
            return
        if redrawn:
            _LOG.info("Drew initial values of %s from the run's seed.", _listed(redrawn))
        if unchanged:
            _LOG.info("Left initial values of %s as they were.", _listed(unchanged))

    @contextmanager
    def _passing_through(self, layer: str | None = None) -> Iterator[None]:
        calling = self._calling
        before = calling.creating, calling.layer
        calling.creating, calling.layer = True, layer
        try:
            yield
        finally:
            calling.creating, calling.layer = before

    def _create(self, next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        claimed, variable_name = self._calling.claimed, str(kwargs.get("name") or "variable")
        keras_path = variable_path(str(kwargs.get("name") or ""))
        if self._calling.layer is not None:
            # Layers of a functional Keras model are built beside it, not below.
            inner = keras_path.removeprefix(self._calling.layer.replace("/", ".")).strip("/")
            path = joined(self._calling.layer, inner, variable_name)
            _refuse_twice(path, self._inside)
            kwargs["name"] = path + "/"
        if self._calling.creating or claimed is None:
            return next_creator(**kwargs)
        name = _claim(claimed, keras_path, variable_name)
        value = kwargs["initial_value"]
        keys, trainable = kwargs.get("collections"), all(n.trainable for n in layers_being_built())
        known = self._inside.get(name)
        if known is not None:
            with self._passing_through():
                check_fits(name, known, value, kwargs.get("dtype"))
            self._collect(known, keys, trainable=trainable)
            return known
        _refuse_twice(name, self._by_layer())
        # With a slash at the end, TensorFlow does not put scopes before the name.
        # `wrap_function` refuses two variables with the same name.
        kwargs["name"] = name + "/"
        if not keras_path and callable(value):
            seed = derive_seed(self.seed, "initial value", name) >> 32
            kwargs["initial_value"] = lambda: run_seeded(value, seed)
        else:
            kwargs["initial_value"] = lifted(value, name)
        with tf.init_scope(), self._passing_through():
            variable = next_creator(**kwargs)
        self._inside_layers.update({id(layer): layer for layer in layers_being_built()})
        # If another thread has created the variable in the meantime, use that variable.
        variable = self._inside.setdefault(name, variable)
        self._collect(variable, keys, trainable=trainable)
        return variable

    def _collect(self, variable: Any, keys: Sequence[str] | None, *, trainable: bool) -> None:
        trainable = trainable and variable.trainable and id(variable) not in self.skipped
        collect(variable, keys, trainable=trainable)


def components_of(variable: Any) -> tuple[tf.Variable, ...]:
    """Return the copies of a distributed variable in this process, or the variable itself.

    Args:
        variable: `tf.Variable` or distributed variable.
    """
    return tuple(getattr(variable, "values", (variable,)))


def _check_eager() -> None:
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise LayerError(
                "Towers need TensorFlow's eager mode, but it is disabled here.",
                got="tf.compat.v1.disable_v2_behavior() or disable_eager_execution() was called, "
                "or this is inside of `with tf.Graph().as_default()`",
                fix="remove this call (`import tensorflow.compat.v1 as tf` alone does no harm)",
            )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _claim(claimed: set[str], keras_path: str, name: str) -> str:
    # `tf.compat.v1.get_variable` puts its scope before the name itself.
    name = name.split(":")[0].strip("/").removeprefix(f"{full_name()}/")
    path = joined(full_name(), keras_path, name)
    if path in claimed:
        if is_reusing():
            return path
        if keras_path:
            raise LayerError(
                f"Keras layers of a tower must have different names, but two are '{keras_path}'.",
                fix="change one name=, or call the same layer object twice to share its weights",
            )
        path = unique(path, claimed)
    claimed.add(path)
    return path


def _refuse_twice(name: str, known: Mapping[str, Any]) -> None:
    if name in known:
        raise LayerError(
            f"Variables must have different names, but a named layer and a Keras layer or plain "
            f"variable both use '{name}'.",
            fix="rename the named layer or the Keras layer",
        )


def _below(scope: str, layer: keras.layers.Layer, variable: keras.Variable) -> str:
    return f"{scope}/{variable.path.removeprefix(f'{layer.path or layer.name}/')}"


def _check_same(
    scope: str, entry: _NamedLayer, config: Mapping[str, Any], input_shape: tuple[int | None, ...]
) -> None:
    def plain(values: Mapping[str, Any]) -> dict[str, Any]:
        # Initializers, activations and other objects are new in each call.
        kinds = int | float | str | bool | tuple | None
        return {k: v for k, v in values.items() if isinstance(v, kinds)}

    if plain(config) != plain(entry.config) or input_shape[1:] != entry.input_shape[1:]:
        raise LayerError(
            f"Layer '{scope}' already exists with other arguments or another input.",
            got=f"{plain(config)} on input {input_shape}",
            expected=f"{plain(entry.config)} on input {entry.input_shape}",
            fix="rename the second layer, because only equal layers can share weights",
        )
