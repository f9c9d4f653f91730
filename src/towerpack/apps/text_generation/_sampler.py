from __future__ import annotations

from typing import Any, Final

import tensorflow as tf

from towerpack.apps.text_generation._config import SampleConfig
from towerpack.apps.text_generation._inputter import TextInputter
from towerpack.apps.text_generation._tokens import BEGIN_ID, LONGEST, NUM_SPECIAL, ids_of, texts_of
from towerpack.model import ModelDesc
from towerpack.nn import expose
from towerpack.ops.sampling import choose, uniform_at
from towerpack.zoo.language_model import LanguageModel

_PREFIX: Final = "state_"


class Sampler(ModelDesc):
    """Model that continues texts token by token, by sampling from the network's prediction.

    The random number for the k-th new token depends only on the seed, k, and the index of the text
    in the batch. Several calls that pass on the state give the same text as one call. Unknown
    tokens and start tokens are never drawn.

    Exposes the new part as `'generated'`, string [n], and `'state_NAME'`, [n, …], for each state.

    Args:
        network: Network that predicts tokens.
        inputter: Inputter with the vocabulary.
        config: Sampling settings. If `fed` is set, only `top_k` and `top_p` are used.
        fed: Whether `length`, `temperature`, `seed` and the state are inputs of the model. A state
            of zeros starts a new text.

    Attributes:
        states: Names of the tensors in the state.
    """

    def __init__(
        self, network: LanguageModel, inputter: TextInputter, config: SampleConfig, *, fed: bool
    ) -> None:
        self._network = network
        self._inputter = inputter
        self._config = config
        self._fed = fed
        self.states = list(self._start(1))

    def inputs(self) -> list[tf.TensorSpec]:
        more = [
            tf.TensorSpec([], tf.int32, "length"),
            tf.TensorSpec([], tf.float32, "temperature"),
            tf.TensorSpec([], tf.int32, "seed"),
            *(
                tf.TensorSpec([None, *value.shape[1:]], value.dtype, name)
                for name, value in self._start(1).items()
            ),
        ]
        return [tf.TensorSpec([None], tf.string, "text"), *(more if self._fed else [])]

    def build_graph(
        self,
        text: tf.Tensor,
        length: Any = None,
        temperature: Any = None,
        seed: Any = None,
        *values: tf.Tensor,
    ) -> None:
        config, vocabulary = self._config, self._inputter.vocabulary
        if not self._fed:
            length, temperature, seed = config.length, config.temperature, config.seed
            values = tuple(self._start(tf.shape(text)[0]).values())
        *before, last, drawn = values
        # The network has not read the last drawn token yet.
        last = tf.where(last == 0, BEGIN_ID, last)[:, None]
        parts: Any = [last, ids_of(text, vocabulary, self._inputter.kind)]
        prompt: Any = tf.concat(parts, 1)
        longest = tf.maximum(tf.reduce_max(tf.cast(prompt.row_lengths(), tf.int32)), length)
        with tf.control_dependencies(
            [
                tf.debugging.assert_positive(length, "length must be at least 1"),
                tf.debugging.assert_less_equal(
                    longest, LONGEST, f"texts must have at most {LONGEST:,} tokens"
                ),
            ]
        ):
            length = tf.identity(length)
        numbers = tf.transpose(uniform_at(seed, drawn, length))

        def choose_known(logits: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
            known = logits[:, NUM_SPECIAL:]
            chosen = choose(known, tf.gather(numbers, k), temperature, config.top_k, config.top_p)
            return chosen + NUM_SPECIAL

        names = [name.removeprefix(_PREFIX) for name in self.states[:-2]]
        state = dict(zip(names, before, strict=True))
        ids, state = self._network.generate(prompt, len(vocabulary), state, length, choose_known)
        after = [*(state[name] for name in names), ids[:, -1], drawn + length]
        for name, value in zip(self.states, after, strict=True):
            expose(name, value)
        expose("generated", texts_of(ids, vocabulary))

    def _start(self, rows: Any) -> dict[str, tf.Tensor]:
        nothing = tf.zeros([rows], tf.int32)
        state = {**self._network.zero_state(rows), "last": nothing, "drawn": nothing}
        return {_PREFIX + name: value for name, value in state.items()}
