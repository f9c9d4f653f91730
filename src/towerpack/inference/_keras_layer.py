from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from towerpack.inference.exported import DEFAULT_SIGNATURE


@keras.saving.register_keras_serializable("towerpack")
class InferenceGraph(keras.layers.Layer):
    """Keras layer that calls a concrete function, from a dict to a dict of tensors.

    A `.keras` file stores the function as a SavedModel, because importing a graph would confuse
    functions with the same name.
    """

    def __init__(
        self,
        outputs: dict[str, tuple[list[int | None], str]],
        module: tf.Module | None = None,
        function: Any = None,
        **kwargs: Any,
    ) -> None:
        # Without this argument, Keras casts floats to the dtype of its policy.
        super().__init__(autocast=False, **kwargs)
        self._outputs = outputs
        self._module: Any = module
        self._function = function
        self.built = True

    def call(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return self._function(**inputs)

    def compute_output_spec(self, inputs: dict[str, Any]) -> dict[str, keras.KerasTensor]:
        return {name: keras.KerasTensor(*spec) for name, spec in self._outputs.items()}

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "outputs": self._outputs}

    def save_assets(self, dir_path: str) -> None:
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        tf.saved_model.save(self._module, dir_path, {DEFAULT_SIGNATURE: self._function}, options)

    def load_assets(self, dir_path: str) -> None:
        self._module = tf.saved_model.load(dir_path)
        self._function = self._module.signatures[DEFAULT_SIGNATURE]


def as_keras_model(module: tf.Module, function: Any, specs: Sequence[tf.TensorSpec]) -> keras.Model:
    """Wrap a concrete function, which takes `specs` and returns a dict, as a Keras model."""
    outputs = {
        name: (list(tensor.shape), tensor.dtype.name)
        for name, tensor in function.structured_outputs.items()
    }
    inputs = {
        str(s.name): keras.Input(batch_shape=s.shape, dtype=s.dtype.name, name=s.name)
        for s in specs
    }
    return keras.Model(inputs, InferenceGraph(outputs, module, function)(inputs))
