"""The model of text classification."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack.apps._class_report import ClassificationReport, expose_classes
from towerpack.apps._modeler import Modeler
from towerpack.apps.text import VOCABULARY, Vocabulary, read_vectors
from towerpack.apps.text_classification._config import TextClassificationConfig
from towerpack.apps.text_classification._inputter import TextInputter
from towerpack.callbacks import ClassificationError, Inferencer, ScalarStats
from towerpack.config import Registry
from towerpack.training import SmartInit
from towerpack.training.weights.read_foreign import read_arrays
from towerpack.zoo import bert

_LOG = get_logger(__name__)

networks: Registry[Any] = Registry(
    "network",
    {name: f"towerpack.zoo.{name}:net" for name in ("seq2label_basic", "seq2label_cnn", "bert")},
)
"""Functions `(tokens, num_classes, *, vocab_size, **options) -> logits [n, num_classes]`."""


class TextClassificationModeler(Modeler):
    """Cross-entropy over a network's logits.

    Exposes `'probabilities'` [n, classes], `'class_ids'` [n], `'incorrect'` [n], `'label'` [n].
    """

    best = ("val/error", "min")
    infer_outputs = ("class_ids", "probabilities")
    config: TextClassificationConfig
    inputter: TextInputter

    def __init__(self, config: TextClassificationConfig, inputter: TextInputter) -> None:
        super().__init__(config, inputter)
        self.network = networks.get(config.model.network)
        if config.model.network == "bert" and config.data.tokenizer != "wordpiece":
            raise ConfigError("bert reads parts of words.", fix="set data.tokenizer to wordpiece")

    def inputs(self) -> list[tf.TensorSpec]:
        return [
            tf.TensorSpec([None, None], tf.int32, "tokens"),
            tf.TensorSpec([None], tf.int64, "label"),
        ]

    def build_graph(self, tokens: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        model, num_classes = self.config.model, len(self.inputter.class_names)
        size = len(self.inputter.vocabulary)
        logits = self.network(tokens, num_classes, vocab_size=size, **model.options)
        logits = tf.cast(logits, tf.float32)
        expose_classes(logits, label)
        target = (1 - model.label_smoothing) * tf.one_hot(label, num_classes)
        target += model.label_smoothing / num_classes
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(target, logits))

    def metrics(self) -> Sequence[Inferencer]:
        names = self.inputter.class_names
        return [
            ScalarStats("cost"),
            ClassificationError("incorrect", "error"),
            ClassificationReport(names, 5 if len(names) > 5 else 1, auc=True),
        ]

    def pretrained(self) -> SmartInit | None:
        """Vectors of words, then weights of elsewhere."""
        data, given = self.config.data, super().pretrained()
        if data.vectors is None:
            return given
        path, tokens = Path(data.vectors).expanduser(), self.inputter.vocabulary.tokens
        matrix = read_vectors(path, tokens, seed=self.config.train.seed or 0)
        return SmartInit([SmartInit({"embedding/embeddings": matrix}), *([given] if given else [])])

    def weights(self, source: str) -> Any:
        """Weights of elsewhere; of BERT under Google's names or Hugging Face's.

        Raises:
            ConfigError: They are of a run with another vocabulary.
        """
        kept = Path(source) / VOCABULARY
        if kept.is_file() and Vocabulary.read(kept) != self.inputter.vocabulary:
            raise ConfigError(
                f"{source} was trained with another vocabulary.",
                fix=f"set data.vocabulary to {kept}",
            )
        if self.config.model.network != "bert":
            return source
        return bert.named(read_arrays(source)[1])

    def export_arguments(self) -> Mapping[str, Any]:
        """Signature from texts to classes, with the tokenizer inside where its rules are known."""
        names, vocabulary = list(self.inputter.class_names), self.inputter.vocabulary
        length, inside = self.config.data.max_length, vocabulary.rules is not None
        how = {"tokenizer": "inside" if inside else VOCABULARY, "max_length": length}
        told = {"task": self.config.task, "class_names": names, "preprocessing": how}
        arguments = {"outputs": self.infer_outputs, "metadata": told}
        if not inside:
            _LOG.warning("The exported model takes numbers of tokens: %s is beside it.", VOCABULARY)
            return arguments
        # Attributes, so that they are saved with the model.
        (self.characters, self.tokens), numbers_of = vocabulary.operations(length)

        def make(compute: Callable[..., Any]) -> Any:
            def serve(text: tf.Tensor) -> dict[str, tf.Tensor]:
                probabilities = compute(numbers_of(text))["probabilities"]
                classes = tf.gather(tf.constant(names), tf.argmax(probabilities, axis=1))
                return {"classes": classes, "probabilities": probabilities}

            spec = tf.TensorSpec([None], tf.string, "text")
            return tf.function(serve, input_signature=[spec], autograph=False)

        return {**arguments, "serve": make}
