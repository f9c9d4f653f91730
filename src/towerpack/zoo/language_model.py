"""Language models: networks that predict the next token, and text generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from towerpack.nn import reuse_scope

State = Mapping[str, tf.Tensor]
"""State of a network after the tokens read so far: tensors [n, ...] by name."""


@dataclass(frozen=True)
class LanguageModel:
    """Network that predicts each token of a text from the previous tokens.

    Attributes:
        net: `net(token int32 [n, time], vocab_size, state, **options)` returns logits
            [n, time, vocab_size] and the state after these tokens. A text may be split over
            several calls.
        zero_state: `zero_state(n, **options)` returns the state before a text, which is all zeros.
        constants: `constants(vocab_size, **options)` returns arguments of `net` that depend only on
            weights. `generate` computes them once.
    """

    net: Callable[..., tuple[tf.Tensor, State]]
    zero_state: Callable[..., State]
    constants: Callable[..., Mapping[str, tf.Tensor]] = lambda *_, **__: {}

    def bind(self, **options: Any) -> LanguageModel:
        """Return the same network with fixed options.

        Args:
            options: Options of the network.
        """
        return LanguageModel(
            lambda *args, **more: self.net(*args, **options, **more),
            lambda rows: self.zero_state(rows, **options),
            lambda vocab_size: self.constants(vocab_size, **options),
        )

    def generate(
        self,
        prompt: tf.RaggedTensor,
        vocab_size: int,
        state: State,
        length: Any,
        choose: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    ) -> tuple[tf.Tensor, State]:
        """Generate texts with a loop in the graph that reads one token per step.

        Args:
            prompt: int32 [n, any], the tokens that each text starts with, at least one.
            vocab_size: Number of tokens.
            state: State before the prompts.
            length: Number of tokens to generate.
            choose: Function from logits [n, vocab_size] and the number of tokens generated so far
                to tokens [n].

        Returns:
            The generated tokens, int32 [n, length], and the state before the last token is read.
        """
        lengths = tf.cast(prompt.row_lengths(), tf.int32)
        longest = tf.reduce_max(lengths)
        # All prompts end at the same step, so shorter prompts start later.
        first = longest - lengths
        place = tf.maximum(tf.range(longest) - first[:, None], 0)
        columns = tf.transpose(tf.gather(prompt.to_tensor(), place, batch_dims=1))
        # Create the variables here, because a loop cannot create variables.
        self.net(columns[0][:, None], vocab_size, state)
        with reuse_scope():
            constants = self.constants(vocab_size)

        def read(token: tf.Tensor, values: State) -> tuple[tf.Tensor, State]:
            with reuse_scope():
                logits, new = self.net(tf.expand_dims(token, 1), vocab_size, values, **constants)
            return tf.squeeze(logits, 1), new

        def read_prompt(t: tf.Tensor, values: State) -> Any:
            _, new = read(columns[t], values)
            return t + 1, {name: _where(t >= first, new[name], values[name]) for name in values}

        def write(k: tf.Tensor, token: tf.Tensor, values: State, ids: tf.TensorArray) -> Any:
            logits, new = read(token, values)
            token = choose(logits, k)
            return k + 1, token, new, ids.write(k, token)

        zero = tf.constant(0)
        _, state = tf.while_loop(lambda t, _: t < longest - 1, read_prompt, (zero, dict(state)))
        ids = tf.TensorArray(tf.int32, length, element_shape=[None])
        start = (zero, columns[longest - 1], state, ids)
        _, _, state, ids = tf.while_loop(lambda k, *_: k < length, write, start)
        return tf.transpose(ids.stack()), state


def _where(rows: tf.Tensor, new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.reshape(rows, [-1, *[1] * (len(old.shape) - 1)]), new, old)
