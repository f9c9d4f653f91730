from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack.apps._class_report import ClassificationReport, expose_classes, most_likely
from towerpack.apps._modeler import Display, Modeler
from towerpack.apps.text import VOCABULARY, Vocabulary, read_vectors
from towerpack.apps.text_classification._config import TextClassificationConfig
from towerpack.apps.text_classification._inputter import TextInputter
from towerpack.callbacks import ClassificationError, Inferencer, ScalarStats
from towerpack.config import Registry
from towerpack.training import SmartInit
from towerpack.training.weights.read_foreign import read_arrays
from towerpack.zoo import bert

_LOG = get_logger(__name__)
_NUM_SHOWN: Final = 5

networks: Registry[Any] = Registry(
    "network",
    {name: f"towerpack.zoo.{name}:net" for name in ("seq2label_basic", "seq2label_cnn", "bert")},
)
"""Functions `(tokens, num_classes, *, vocab_size, **options) -> logits`, by name."""


class TextClassificationModeler(Modeler):
    """Modeler of text classification, with cross-entropy as the loss.

    Exposes `'probabilities'` [n, classes], `'class_ids'` [n], `'incorrect'` [n], `'label'` [n].

    Args:
        config: Recipe.
        inputter: Data of the recipe.

    Raises:
        ConfigError: The network is `bert`, and the tokenizer is not `wordpiece`.
    """

    best = ("val/error", "min")
    infer_outputs = ("class_ids", "probabilities")
    config: TextClassificationConfig
    inputter: TextInputter

    def __init__(self, config: TextClassificationConfig, inputter: TextInputter) -> None:
        super().__init__(config, inputter)
        self.network = networks.get(config.model.network)
        if config.model.network == "bert" and config.data.tokenizer != "wordpiece":
            raise ConfigError(
                "The network bert needs data.tokenizer=wordpiece.",
                fix="set data.tokenizer to wordpiece",
            )

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
        """Return the initial word vectors, followed by the weights that `transfer` configures."""
        data, weights = self.config.data, super().pretrained()
        if data.vectors is None:
            return weights
        path, tokens = Path(data.vectors).expanduser(), self.inputter.vocabulary.tokens
        matrix = read_vectors(path, tokens, seed=self.config.train.seed or 0)
        vectors = SmartInit({"embedding/embeddings": matrix})
        return SmartInit([vectors, *([weights] if weights else [])])

    def weights(self, source: str) -> Any:
        """Return weights. BERT's weights may have the names of Google or Hugging Face.

        Raises:
            ConfigError: The weights belong to a run with a different vocabulary.
        """
        file = Path(source) / VOCABULARY
        if file.is_file() and Vocabulary.read(file) != self.inputter.vocabulary:
            raise ConfigError(
                f"The vocabulary must be the same as that of the run {source}.",
                fix=f"set data.vocabulary to {file}",
            )
        if self.config.model.network != "bert":
            return source
        return bert.named(read_arrays(source)[1])

    def export_arguments(self) -> Mapping[str, Any]:
        """Return a signature from texts to classes, if TensorFlow operations can tokenize texts.

        Otherwise, the exported model takes token ids.
        """
        names, vocabulary = list(self.inputter.class_names), self.inputter.vocabulary
        length, inside = self.config.data.max_length, vocabulary.rules is not None
        how = {"tokenizer": "inside" if inside else VOCABULARY, "max_length": length}
        metadata = {"task": self.config.task, "class_names": names, "preprocessing": how}
        arguments = {"outputs": self.infer_outputs, "metadata": metadata}
        if not inside:
            _LOG.warning("The exported model takes token ids, see %s beside it.", VOCABULARY)
            return arguments
        # Keep the tables in attributes, so that they are saved with the model.
        (self.characters, self.tokens), numbers_of = vocabulary.operations(length)

        def make(compute: Callable[..., Any]) -> Any:
            def serve(text: tf.Tensor) -> dict[str, tf.Tensor]:
                probabilities = compute(numbers_of(text))["probabilities"]
                classes = tf.gather(tf.constant(names), tf.argmax(probabilities, axis=1))
                return {"classes": classes, "probabilities": probabilities}

            spec = tf.TensorSpec([None], tf.string, "text")
            return tf.function(serve, input_signature=[spec], autograph=False)

        return {**arguments, "serve": make}


class TextClassificationDisplay(Display):
    """Display of the most likely classes of a text, as rows."""

    def row(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        top = most_likely(self.inputter.class_names, outputs["probabilities"], _NUM_SHOWN)
        return {**top[0], "top": top}
