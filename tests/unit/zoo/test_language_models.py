"""Networks that continue texts: their size, and that a text may come in parts."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from towerpack.nn import expose, reuse_scope
from towerpack.tower import TowerFunction

VOCABULARY = 87


def lstm_numbers(vocabulary: int, embedding: int, units: int) -> int:
    """Embedding, two LSTMs (four gates; kernels of input and output, one bias), a dense layer."""
    first, second = (4 * units * (size + units + 1) for size in (embedding, units))
    return vocabulary * embedding + first + second + units * vocabulary + vocabulary


def transformer_numbers(vocabulary: int, width: int, layers: int) -> int:
    """Per block four square kernels' worth of attention, eight of the MLP, biases, two norms."""
    block = 12 * width**2 + (3 + 1 + 4 + 1) * width + 4 * width
    return vocabulary * width + layers * block + 2 * width + width * vocabulary + vocabulary


@pytest.mark.parametrize(
    ("name", "options", "numbers"),
    [
        ("rnn_basic", {}, lstm_numbers(VOCABULARY, 256, 256)),  # Of Lambda's suite.
        (
            "transformer",
            {"width": 24, "layers": 2, "heads": 3, "context": 6},
            transformer_numbers(VOCABULARY, 24, 2),
        ),
    ],
)
def test_a_text_in_parts_is_the_same(name: str, options: dict[str, Any], numbers: int) -> None:
    network = importlib.import_module(f"towerpack.zoo.{name}").NETWORK.bind(**options)

    def run(token: tf.Tensor, parts: tuple[int, ...]) -> tf.Tensor:
        state, found = network.zero_state(2), []
        for part in tf.split(token, parts, 1):
            logits, state = network.net(part, VOCABULARY, state)
            found.append(logits)
        return tf.concat(found, 1)

    token = tf.constant(np.random.default_rng(0).integers(0, VOCABULARY, (2, 20)), tf.int32)
    spec = [tf.TensorSpec([None, None], tf.int32, "token")]

    def model(token: tf.Tensor) -> None:
        expose("whole", run(token, (20,)))
        with reuse_scope():
            expose("parts", run(token, (9, 1, 10)))

    tower = TowerFunction(model, spec)
    function, _ = tower.trace(is_training=False).function(["whole", "parts"])
    whole, parts = (t.numpy() for t in function(token))
    assert whole.shape == (2, 20, VOCABULARY)
    np.testing.assert_allclose(whole, parts, atol=2e-5)
    assert np.ptp(whole) > 0.01
    variables = tower.store.named_variables().values()
    assert sum(int(np.prod(v.shape)) for v in variables) == numbers
