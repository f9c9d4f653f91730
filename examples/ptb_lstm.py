"""A language model: words by an LSTM whose state is carried from batch to batch.

After Zaremba et al. 2014, as Tensorpack's PennTreebank example, on the text that `help()` of Python
shows (`pydoc_data`, about 100,000 words and signs). The text is cut into 20 strands; batch k holds
the words 35 k to 35 k + 34 of each, and begins with the state in which batch k - 1 ended.
Perplexity is the exponential of the mean cross-entropy of a word, here on the last tenth.

    python examples/ptb_lstm.py [--steps N] [--out DIR]

Reached (600 steps, 62 s of processor time on two cores; text of Python 3.11.7): perplexity 21.5,
where knowing how frequent each word is gives 104.6.
"""

import argparse
import math
import re
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics

import keras
import numpy as np
import tensorflow as tf

from towerpack import ModelDesc
from towerpack.callbacks import InferenceRunner, ModelSaver, ScalarStats
from towerpack.dataflow import DataFlow, DataFromList
from towerpack.nn import Dropout, FullyConnected
from towerpack.training import SimpleTrainer, TrainConfig, apply_grad_processors, gradproc

STRANDS, LENGTH = 20, 35
UNITS = 200
WORDS = 3000


class Model(ModelDesc):
    def inputs(self):
        return [
            tf.TensorSpec([STRANDS, None], tf.int32, "word"),
            tf.TensorSpec([STRANDS, None], tf.int32, "next_word"),
            tf.TensorSpec([], tf.float32, "goes_on"),
        ]

    def build_graph(self, word, next_word, goes_on):
        x = keras.layers.Embedding(WORDS, UNITS, name="embedding")(tf.cast(word, tf.int64))
        state = [tf.zeros([STRANDS, UNITS])] * 2
        if self.training:
            # Variables that no optimizer moves: they are in checkpoints, so a resumed run has them.
            kept = [tf.Variable(zeros, trainable=False, name=f"state{i}")
                    for i, zeros in enumerate(state)]  # fmt: skip
            state = [variable * goes_on for variable in kept]
        lstm = keras.layers.LSTM(UNITS, return_sequences=True, return_state=True, name="lstm")
        x, *state = lstm(Dropout("dropout0", x, 0.5), initial_state=state)
        if self.training:
            for variable, value in zip(kept, state, strict=True):
                variable.assign(value)
        x = tf.reshape(Dropout("dropout1", x, 0.5), [-1, UNITS])
        logits = FullyConnected("softmax", x, WORDS, kernel_initializer="glorot_uniform")
        labels = tf.reshape(next_word, [-1])
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    def optimizer(self):
        return apply_grad_processors(keras.optimizers.Adam(3e-3), gradproc.GlobalNormClip(5))


def text() -> list[str]:
    """Words and signs, in lower case. A paragraph that several topics have counts once."""
    paragraphs = dict.fromkeys(p for name in sorted(topics) for p in topics[name].split("\n\n"))
    return re.findall(r"\w+|[^\w\s]", " <eos> ".join(paragraphs).lower())


def batches(numbers: np.ndarray, length: int | None = None) -> DataFlow:
    """Consecutive batches `(words, next words, whether it goes on)`; one if `length` is None."""
    strands = numbers[: len(numbers) // STRANDS * STRANDS].reshape(STRANDS, -1)
    last = strands.shape[1] - 1
    length = last if length is None else length
    return DataFromList(
        [
            (strands[:, i : i + length], strands[:, i + 1 : i + 1 + length], np.float32(i > 0))
            for i in range(0, last - length + 1, length)
        ]
    )


def main(arguments: list[str] | None = None) -> float:
    """Train; gives the perplexity."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", type=Path, default=Path("runs/ptb_lstm"))
    args = parser.parse_args(arguments)

    words = text()
    cut = len(words) * 9 // 10
    counts = Counter(words[:cut])
    number_of = {w: i for i, (w, _) in enumerate(counts.most_common(WORDS - 1), 1)}  # 0: any other
    numbers = np.array([number_of.get(word, 0) for word in words], np.int32)
    train, test = numbers[:cut], numbers[cut:]
    # What a model reaches that knows how frequent words are, and nothing else.
    share = (np.bincount(train, minlength=WORDS) + 1) / (len(train) + WORDS)
    frequency = math.exp(-np.log(share[test]).mean())

    config = TrainConfig(
        model=Model(), dataflow=batches(train, LENGTH),
        callbacks=[InferenceRunner(batches(test), ScalarStats("cost")), ModelSaver(keep=1)],
        steps_per_epoch=-(-args.steps // 4), max_epoch=4, seed=0, run_dir=args.out)  # fmt: skip
    trainer = SimpleTrainer(config)
    trainer.train()
    perplexity = math.exp(trainer.monitors.latest("val/cost"))
    print(f"{len(train)} words; perplexity {perplexity:.1f}, by frequencies alone {frequency:.1f}")
    return perplexity


if __name__ == "__main__":
    main()
