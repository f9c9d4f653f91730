"""Networks that read texts: parameters as published, padding without effect, BERT's weights."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

from scaling import only_in_full
from towerpack.tower import TowerFunction
from towerpack.training import SmartInit
from towerpack.training.weights.read_foreign import read_arrays
from towerpack.zoo import bert, seq2label_basic, seq2label_cnn
from towers import spec, tower_of, variables

TOKENS = spec(None, None, name="tokens", dtype=tf.int32)
SMALL: dict[str, Any] = {"layers": 2, "hidden_size": 32, "num_heads": 4, "max_positions": 40}
NETWORKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "seq2label_basic": (seq2label_basic.net, {"units": 16, "embedding_size": 8}),
    "seq2label_cnn": (seq2label_cnn.net, {"filters": 6, "embedding_size": 8}),
    "bert": (bert.net, SMALL),
}


def tower(net: Any, vocab_size: int = 50, classes: int = 3, **options: Any) -> TowerFunction:
    return tower_of(lambda x: net(x, classes, vocab_size=vocab_size, **options), TOKENS)


def logits_of(made: TowerFunction) -> Callable[[Any], np.ndarray]:
    call = tf.function(
        lambda x: made(x, is_training=False).outputs["y"], input_signature=[TOKENS], autograph=False
    )
    return lambda tokens: call(tf.constant(tokens, tf.int32)).numpy()


@pytest.mark.parametrize(
    ("net", "options", "wanted"),
    [
        # Lambda's: 200 numbers a word, 4 gates, 128 units.
        (
            seq2label_basic.net,
            {},
            50 * 200 + 4 * 128 * (200 + 128 + 1) + 4 * 128 * (128 + 128 + 1) + 3 * 129,
        ),
        # Kim 2014: 300 numbers a word, 100 windows of 3, 4 and 5 words each.
        (seq2label_cnn.net, {}, 50 * 300 + 100 * (300 * (3 + 4 + 5) + 3) + 3 * 301),
        # Google's BERT-tiny (2 layers of 128) has 4,385,920.
        (bert.net, {"layers": 2, "hidden_size": 128, "num_heads": 2}, 4_385_920 + 3 * 129),
    ],
)
def test_parameters_are_those_of_the_paper(net: Any, options: Any, wanted: int) -> None:
    made = tower(net, 30_522 if net is bert.net else 50, **options)
    made.trace(is_training=True)
    trained = [v for n, v in variables(made).items() if "seed_generator" not in n]
    assert sum(v.size for v in trained) == wanted


@only_in_full
def test_bert_base_has_109_million_parameters() -> None:
    made = tower(bert.net, 30_522, 2)
    made.trace(is_training=True)
    shapes = {n: v.shape for n, v in made.store.named_variables().items()}
    sizes = {n: math.prod(s) for n, s in shapes.items() if n.startswith("bert/")}
    assert sum(s for n, s in sizes.items() if "seed_generator" not in n) == 109_482_240


@pytest.mark.parametrize("name", NETWORKS)
def test_padding_and_other_texts_have_no_effect(name: str) -> None:
    net, options = NETWORKS[name]
    logits = logits_of(tower(net, **options))
    none = [2] if name == "bert" else [0, 0]  # It always has [CLS].
    texts = [[5, 6, 7, 8, 9, 10, 11], [2, 3], none]
    alone = np.concatenate([logits([text]) for text in texts])
    together = logits([text + [0] * (20 - len(text)) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert np.isfinite(together).all()
    assert np.ptp(together, axis=0).min() > 1e-6


def theirs(name: str) -> str:
    """A name of Hugging Face's for one of Google's."""
    name = re.sub(r"layer_(\d+)", r"layer/\1", name)
    for old, new in {
        "_embeddings": "_embeddings/weight",
        "gamma": "weight",
        "beta": "bias",
    }.items():
        name = re.sub(f"{old}$", new, name)
    return name.replace("kernel", "weight").replace("/", ".")


def encoded_by_hand(w: dict[str, np.ndarray], tokens: list[int], heads: int) -> np.ndarray:
    """The pooled vector of one text, in NumPy, by Devlin et al. 2018 and Vaswani et al. 2017."""

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return scaled * w[f"{name}/LayerNorm/gamma"] + w[f"{name}/LayerNorm/beta"]

    def dense(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}/kernel"] + w[f"{name}/bias"]

    e = "bert/embeddings"
    x = w[f"{e}/word_embeddings"][tokens] + w[f"{e}/position_embeddings"][: len(tokens)]
    x = norm(x + w[f"{e}/token_type_embeddings"][0], e)
    for i in range(SMALL["layers"]):
        at = f"bert/encoder/layer_{i}"
        q, k, v = (
            dense(x, f"{at}/attention/self/{n}").reshape(len(tokens), heads, -1)
            for n in ("query", "key", "value")
        )
        scores = np.exp(np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1]))
        mixed = np.einsum("hij,jhd->ihd", scores / scores.sum(-1, keepdims=True), v)
        mixed = mixed.reshape(x.shape)
        x = norm(x + dense(mixed, f"{at}/attention/output/dense"), f"{at}/attention/output")
        h = dense(x, f"{at}/intermediate/dense")
        h = h * 0.5 * (1 + np.vectorize(math.erf)(h / np.sqrt(2)))
        x = norm(x + dense(h, f"{at}/output/dense"), f"{at}/output")
    return np.tanh(dense(x[0], "bert/pooler/dense"))


def test_bert_s_weights_of_others(tmp_path: Path) -> None:
    """A checkpoint of Google's and safetensors of Hugging Face's, against NumPy."""
    made = tower(bert.net, **SMALL)
    made.trace(is_training=True)
    rng = np.random.default_rng(0)
    weights = {
        name.removesuffix("/embeddings") if name.endswith("_embeddings/embeddings") else name: (
            rng.normal(0, 0.3, value.shape).astype(np.float32)
        )
        for name, value in variables(made).items()
        if name.startswith("bert/") and "seed_generator" not in name
    }
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, value in weights.items():
            tf.compat.v1.get_variable(name, initializer=value)
        session.run(tf.compat.v1.global_variables_initializer())
        google = tf.compat.v1.train.Saver().save(session, str(tmp_path / "bert_model.ckpt"))
    turned = {
        theirs(n): np.ascontiguousarray(v.T if n.endswith("kernel") else v)
        for n, v in weights.items()
    }
    save_file(turned, tmp_path / "model.safetensors")
    short = {name.removeprefix("bert."): value for name, value in turned.items()}
    save_file(short, tmp_path / "encoder.safetensors")
    tokens = [2, 7, 9, 9, 30, 3]
    wanted = encoded_by_hand(weights, tokens, SMALL["num_heads"])
    named = made.store.named_variables()
    fc = rng.normal(size=(32, 3)).astype(np.float32)
    named["classifier/kernel"].assign(fc)
    logits = logits_of(made)
    for source in (google, tmp_path / "model.safetensors", tmp_path / "encoder.safetensors"):
        for name, variable in named.items():
            if name.startswith("bert/") and "seed_generator" not in name:
                variable.assign(tf.zeros_like(variable))
        loaded = SmartInit(bert.named(read_arrays(source)[1])).load(named)
        assert len(loaded) == len(weights)
        np.testing.assert_allclose(logits([[*tokens, 0, 0]])[0], wanted @ fc, atol=2e-5)
