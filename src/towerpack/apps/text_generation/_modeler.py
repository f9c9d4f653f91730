from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.apps._modeler import Display, Modeler
from towerpack.apps.text import read_vectors
from towerpack.apps.text_generation._config import TextGenerationConfig
from towerpack.apps.text_generation._inputter import TextInputter
from towerpack.apps.text_generation._report import TextReport
from towerpack.apps.text_generation._sampler import Sampler
from towerpack.callbacks import Inferencer
from towerpack.config import Registry
from towerpack.nn import expose, get_current_tower_context
from towerpack.ops.cross_entropy import cross_entropy
from towerpack.zoo.language_model import LanguageModel

networks: Registry[LanguageModel] = Registry(
    "network", {name: f"towerpack.zoo.{name}:NETWORK" for name in ("rnn_basic", "transformer")}
)


class TextGenerationModeler(Modeler):
    """Modeler of text generation, with the cross-entropy of the next token as the loss.

    In training, variables carry the network's state from one batch to the next, and checkpoints
    contain these variables. For each row, `'nats'` [n] is the sum of the losses of its tokens, and
    `'counted'` [n] is the number of these tokens.

    Args:
        config: Recipe.
        inputter: Data of the recipe.
    """

    infer_outputs = ("generated",)
    config: TextGenerationConfig
    inputter: TextInputter

    def __init__(self, config: TextGenerationConfig, inputter: TextInputter) -> None:
        super().__init__(config, inputter)
        options = dict(config.model.options)
        if config.model.vectors is not None:
            # Tokens include the space before a word, which the vectors lack.
            words = [token.strip(" ") or token for token in inputter.vocabulary.tokens]
            path = Path(config.model.vectors).expanduser()
            options["vectors"] = read_vectors(path, words, seed=config.train.seed or 0)
        self.network = networks.get(config.model.network).bind(**options)

    def inputs(self) -> list[tf.TensorSpec]:
        return [
            tf.TensorSpec([None, None], tf.int32, "token"),
            tf.TensorSpec([None, None], tf.int32, "label"),
            tf.TensorSpec([None], tf.int32, "text"),
            tf.TensorSpec([None], tf.float32, "goes_on"),
        ]

    def build_graph(
        self, token: tf.Tensor, label: tf.Tensor, text: tf.Tensor, goes_on: tf.Tensor
    ) -> tf.Tensor:
        carried: dict[str, tf.Variable] = {}
        if self.training:
            carried = self._carried_state(self.config.data.batch_size)
            state = {
                name: variable * tf.cast(_like(goes_on, variable), variable.dtype)
                for name, variable in carried.items()
            }
        else:
            state = self.network.zero_state(tf.shape(token)[0])
        logits, state = self.network.net(token, len(self.inputter.vocabulary), state)
        for name, variable in carried.items():
            variable.assign(tf.cast(state[name], variable.dtype))
        counted = tf.cast(label >= 0, tf.float32)
        losses = counted * cross_entropy(tf.maximum(label, 0), tf.cast(logits, tf.float32))
        expose("nats", tf.reduce_sum(losses, 1))
        expose("counted", tf.reduce_sum(counted, 1))
        expose("text", text)
        return tf.reduce_sum(losses) / tf.maximum(tf.reduce_sum(counted), 1)

    def _carried_state(self, rows: int) -> dict[str, tf.Variable]:
        if get_current_tower_context().total > 1:
            raise ConfigError(
                "Text generation must use a single replica, because batches carry a state.",
                got=f"trainer: {self.config.train.trainer}",
                fix="set train.trainer to simple",
            )
        return {
            name: tf.Variable(zeros, trainable=False, name=f"state_{name}")
            for name, zeros in self.network.zero_state(rows).items()
        }

    def metrics(self) -> Sequence[Inferencer]:
        return [TextReport(self.inputter)]

    def for_inference(self) -> Sampler:
        return Sampler(self.network, self.inputter, self.config.sample, fed=False)

    def export_arguments(self) -> Mapping[str, Any]:
        """Return a model that continues texts, whose inputs include the sampling settings."""
        sample = self.config.sample
        model = Sampler(self.network, self.inputter, sample, fed=True)
        states: list[Any] = model.inputs()[-len(model.states) :]
        return {
            "model": model,
            "outputs": ("generated", *model.states),
            "batch_examples": {
                "text": np.array([b"The ", b""], object),
                "length": np.int32(20),
                "temperature": np.float32(sample.temperature),
                "seed": np.int32(sample.seed),
                **{s.name: np.zeros([2, *s.shape[1:]], s.dtype.as_numpy_dtype) for s in states},
            },
            "metadata": {
                "task": self.config.task,
                "preprocessing": {"unit": self.config.data.unit},
                "sample": sample.model_dump(),
                "optional_inputs": model.states,
            },
        }


class TextGenerationDisplay(Display):
    """Display of the generated part of each text in tables, and of the whole text in a file."""

    def row(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        return {"generated": _decoded(outputs)}

    def files(self, sample: Any, outputs: Mapping[str, np.ndarray]) -> Mapping[str, bytes]:
        return {".txt": (str(sample) + _decoded(outputs)).encode()}


def _decoded(outputs: Mapping[str, Any]) -> str:
    return bytes(outputs["generated"]).decode()


def _like(rows: tf.Tensor, other: tf.Variable) -> tf.Tensor:
    return tf.reshape(rows, [-1, *[1] * (other.shape.rank - 1)])
