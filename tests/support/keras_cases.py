"""Small compiled Keras models that together hold the stateful layers and options of Keras 3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

LAYERS = keras.layers
RNG = np.random.default_rng(11)
X = RNG.normal(size=(32, 3)).astype(np.float32) * 3 + 2
Y = (X @ np.array([[1.0], [-2.0], [0.5]], np.float32) / 3).astype(np.float32)
Y1 = Y[:, 0]
CLASS = np.digitize(Y1, [-1.0, 0.0]).astype(np.int64)
WEIGHT = RNG.uniform(0.05, 0.9, 32).astype(np.float32)
CLASS_WEIGHT = np.array([0.25, 1.0, 2.5], np.float32)[CLASS]
TOKENS = RNG.integers(1, 7, (32, 5)) * (np.arange(5) < RNG.integers(1, 6, (32, 1)))
STEPS = RNG.normal(size=(32, 5, 1)).astype(np.float32)
SERIES = RNG.normal(size=(32, 5, 2)).astype(np.float32) * (TOKENS > 0)[..., None]
IMAGES = RNG.uniform(0, 255, (32, 6, 6, 3)).astype(np.float32)
WORDS = RNG.choice(np.array([b"a", b"b", b"c", b"d"]), (32, 4)).astype(object)


@dataclass
class Case:
    """A model and its data."""

    make: Callable[[], keras.Model]
    inputs: list[np.ndarray]
    targets: list[np.ndarray]
    weight: np.ndarray | None = None
    specs: list[tf.TensorSpec] | None = None
    names: list[str] | None = None


def compiled(model: keras.Model, optimizer: Any = None, loss: Any = "mse", **kwargs: Any) -> Any:
    model.compile(optimizer or keras.optimizers.SGD(0.02, momentum=0.5), loss, **kwargs)
    return model


def chain(*layers: Any, shape: tuple[int | None, ...] = (3,), **kwargs: Any) -> Any:
    kwargs.setdefault("metrics", ["mae"])
    dtype = kwargs.pop("dtype", "float32")
    batch = kwargs.pop("batch", None)
    return compiled(keras.Sequential([keras.Input(shape, batch, dtype=dtype), *layers]), **kwargs)


def dense(units: int = 1, **kwargs: Any) -> Any:
    return LAYERS.Dense(units, **kwargs)


def optimizer_case(make: Callable[[], Any]) -> Case:
    return Case(lambda: chain(dense(4, activation="tanh"), dense(), optimizer=make()), [X], [Y])


def adapted(layer: Any, data: Any) -> Any:
    layer.adapt(data)
    return layer


class Subclassed(keras.Model):
    """Layers that are built in the first call, a loss of its own, a variable of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.normalization = LAYERS.Normalization(mean=[1.0, 2.0, 3.0], variance=[4.0, 1.0, 2.0])
        self.first, self.last = LAYERS.Dense(4, activation="relu"), LAYERS.Dense(1)
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.calls.assign_add(1.0)
        h = self.first(self.normalization(x))
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(h)))
        return self.last(h)


class TwoHeads(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = LAYERS.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        scores = self.dense(x)
        return {"scores": scores, "half": scores / 2}


def two_heads(**kwargs: Any) -> keras.Model:
    one, two = keras.Input([2], name="one"), keras.Input([1], name="two")
    x = LAYERS.Concatenate()([one, two])
    x = LAYERS.Dense(4, activation="relu", kernel_regularizer="l2", activity_regularizer="l1")(x)
    heads = [LAYERS.Dense(1, name="y")(x), LAYERS.Dense(3, name="kind")(x)]
    usual: dict[str, Any] = {
        "loss": {
            "y": "mse",
            "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        },
        "loss_weights": {"y": 1.0, "kind": 0.5},
        "metrics": {"y": "mae", "kind": "accuracy"},
        "weighted_metrics": {"y": ["mse"]},
    }
    return compiled(keras.Model([one, two], heads), **{**usual, **kwargs})


def embedded(*layers: Any, **kwargs: Any) -> Any:
    return chain(
        LAYERS.Embedding(7, 3, mask_zero=True), *layers, shape=(5,), dtype="int64", **kwargs
    )


def attention() -> keras.Model:
    ids = keras.Input([5], dtype="int64")
    x = LAYERS.Embedding(7, 4, mask_zero=True)(ids)
    x = LAYERS.Add()([x, LAYERS.MultiHeadAttention(2, 2)(x, x)])
    x = LAYERS.LayerNormalization()(x)
    return compiled(keras.Model(ids, LAYERS.Dense(1)(x)), metrics=["mae"], weighted_metrics=["mse"])


def efficient() -> keras.Model:
    image = keras.Input([6, 6, 3])
    x = LAYERS.Rescaling(1 / 255)(image)
    x = adapted(LAYERS.Normalization(), IMAGES / 255)(x)
    x = LAYERS.Conv2D(4, 3, use_bias=False)(x)
    x = LAYERS.BatchNormalization(momentum=0.5)(x)
    x = LAYERS.DepthwiseConv2D(3, activation="swish")(x)
    x = LAYERS.GlobalAveragePooling2D()(x)
    x = LAYERS.Dropout(0.3, seed=4)(x)
    probs = LAYERS.Dense(3, activation="softmax")(x)
    return compiled(
        keras.Model(image, probs),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)],
    )


def classes(**kwargs: Any) -> Any:
    return chain(dense(3, activation="softmax"), loss="sparse_categorical_crossentropy", **kwargs)


class Tracked(keras.Model):
    """With a metric that its call moves."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = LAYERS.Dense(1)
        self.size = keras.metrics.Mean(name="size")

    def call(self, x: Any, training: bool = False) -> Any:
        y = self.dense(x)
        self.size.update_state(keras.ops.abs(y))
        return y


SGD, ADAM = keras.optimizers.SGD, keras.optimizers.Adam


def some_decay() -> Any:
    optimizer = keras.optimizers.AdamW(0.05, weight_decay=0.3)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def several_optimizers() -> keras.Model:
    chosen = keras.optimizers.OptimizerMap(SGD(0.05))
    chosen[".*first/.*"] = ADAM(0.05, use_ema=True, ema_momentum=0.8)
    return chain(dense(4, name="first"), dense(), optimizer=keras.optimizers.MultiOptimizer(chosen))


CASES: dict[str, Case] = {
    "batch normalization": Case(
        lambda: chain(dense(4), LAYERS.BatchNormalization(momentum=0.5), dense()), [X], [Y]
    ),
    "frozen batch normalization": Case(
        lambda: chain(dense(4), LAYERS.BatchNormalization(trainable=False), dense()), [X], [Y]
    ),
    "normalization adapted": Case(
        lambda: chain(adapted(LAYERS.Normalization(), X), dense()), [X], [Y]
    ),
    "normalization given": Case(
        lambda: chain(LAYERS.Normalization(mean=2.0, variance=9.0), dense()), [X], [Y]
    ),
    "normalization inverted": Case(
        lambda: chain(dense(3), adapted(LAYERS.Normalization(invert=True), X / 9), dense()),
        [X],
        [Y],
    ),
    "subclassed, unbuilt, add_loss": Case(
        lambda: compiled(Subclassed(), metrics=["mae"]),
        [X],
        [Y],
        specs=[tf.TensorSpec([None, 3], tf.float32, "x")],
    ),
    "spectral normalization": Case(
        lambda: chain(LAYERS.SpectralNormalization(dense(4)), dense()), [X], [Y]
    ),
    "group, layer, unit normalization": Case(
        lambda: chain(
            dense(4),
            LAYERS.GroupNormalization(2),
            LAYERS.LayerNormalization(),
            LAYERS.UnitNormalization(),
            dense(),
        ),
        [X],
        [Y],
    ),
    "stateful LSTM": Case(
        lambda: chain(LAYERS.LSTM(3, stateful=True), dense(), shape=(5, 1), batch=8), [STEPS], [Y]
    ),
    "stateful GRU with dropout": Case(
        lambda: chain(
            LAYERS.GRU(3, stateful=True, dropout=0.3, seed=3), dense(), shape=(5, 1), batch=8
        ),
        [STEPS],
        [Y],
    ),
    "bidirectional": Case(
        lambda: chain(LAYERS.Bidirectional(LAYERS.LSTM(3)), dense(), shape=(5, 1)), [STEPS], [Y]
    ),
    "dropouts": Case(
        lambda: chain(
            dense(8),
            LAYERS.Dropout(0.3, seed=1),
            LAYERS.GaussianNoise(0.1, seed=2),
            LAYERS.AlphaDropout(0.2, seed=3),
            dense(),
        ),
        [X],
        [Y],
    ),
    "bidirectional, mask, weights, use_ema": Case(
        lambda: embedded(
            LAYERS.Bidirectional(LAYERS.SimpleRNN(2, return_sequences=True)),
            dense(),
            optimizer=ADAM(0.05, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3),
            weighted_metrics=["mse"],
        ),
        [TOKENS],
        [STEPS],
        RNG.uniform(0, 1, (32, 5)).astype(np.float32),
    ),
    "embedding with mask": Case(
        lambda: embedded(LAYERS.LSTM(3, return_sequences=True), dense()), [TOKENS], [STEPS]
    ),
    "masking": Case(
        lambda: chain(
            LAYERS.Masking(),
            LAYERS.GRU(3, return_sequences=True),
            LAYERS.TimeDistributed(dense()),
            shape=(5, 2),
            weighted_metrics=["mse"],
        ),
        [SERIES],
        [STEPS],
    ),
    "mask and sample weights": Case(
        lambda: embedded(
            LAYERS.SimpleRNN(3, return_sequences=True), dense(), weighted_metrics=["mae"]
        ),
        [TOKENS],
        [STEPS],
        RNG.uniform(0, 1, (32, 5)).astype(np.float32),
    ),
    "attention with mask": Case(attention, [TOKENS], [STEPS]),
    "sample weights": Case(
        lambda: chain(dense(), weighted_metrics=["mse", "mae"]), [X], [Y], WEIGHT
    ),
    "class weights": Case(
        lambda: classes(metrics=["accuracy"], weighted_metrics=["accuracy"]),
        [X],
        [CLASS],
        CLASS_WEIGHT,
    ),
    "metrics with state": Case(
        lambda: chain(
            dense(activation="sigmoid"),
            loss="binary_crossentropy",
            metrics=[keras.metrics.AUC(), keras.metrics.Precision(), keras.metrics.Recall()],
        ),
        [X],
        [(Y > 0).astype(np.float32)],
    ),
    "more metrics": Case(
        lambda: chain(
            dense(),
            metrics=[keras.metrics.R2Score(), keras.metrics.RootMeanSquaredError()],
        ),
        [X],
        [Y],
    ),
    "two heads": Case(two_heads, [X[:, :2], X[:, 2:]], [Y, CLASS]),
    "lists of losses": Case(
        lambda: two_heads(
            loss=["mae", keras.losses.SparseCategoricalCrossentropy(from_logits=True)],
            loss_weights=[0.3, 2.0],
            metrics=[["mse"], ["accuracy"]],
            weighted_metrics=None,
        ),
        [X[:, :2], X[:, 2:]],
        [Y, CLASS],
    ),
    "dict of outputs": Case(
        lambda: compiled(
            TwoHeads(),
            loss={"half": "mse", "scores": keras.losses.SparseCategoricalCrossentropy(True)},
            metrics={"half": ["mae"], "scores": ["accuracy"]},
        ),
        [X],
        [np.repeat(Y, 3, 1), CLASS],
        specs=[tf.TensorSpec([None, 3], tf.float32, "x")],
        names=["half", "scores"],
    ),
    "regularizers and constraints": Case(
        lambda: chain(
            dense(4, kernel_regularizer="l2", bias_regularizer="l1", kernel_constraint="max_norm"),
            LAYERS.ActivityRegularization(l2=0.01),
            dense(),
        ),
        [X],
        [Y],
    ),
    "use_ema": optimizer_case(lambda: SGD(0.05, use_ema=True, ema_momentum=0.8)),
    "use_ema that overwrites": optimizer_case(
        lambda: ADAM(0.05, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3)
    ),
    "use_ema in LossScale": optimizer_case(
        lambda: keras.optimizers.LossScaleOptimizer(
            SGD(0.05, use_ema=True, ema_momentum=0.8), 8.0, 3
        )
    ),
    "ScheduleFreeAdamW": optimizer_case(
        lambda: keras.optimizers.ScheduleFreeAdamW(0.05, warmup_steps=2)
    ),
    "ScheduleFreeAdamW with use_ema": optimizer_case(
        lambda: keras.optimizers.ScheduleFreeAdamW(0.05, use_ema=True, ema_momentum=0.7)
    ),
    "LossScale": optimizer_case(lambda: keras.optimizers.LossScaleOptimizer(SGD(0.05), 64.0, 2)),
    "loss_scale_factor": optimizer_case(lambda: ADAM(0.05, loss_scale_factor=16.0)),
    "gradient_accumulation_steps": optimizer_case(
        lambda: SGD(0.05, gradient_accumulation_steps=2, use_ema=True, ema_momentum=0.5)
    ),
    "clipping and decay": optimizer_case(
        lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1, global_clipnorm=0.5)
    ),
    "schedule": optimizer_case(
        lambda: SGD(
            keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), nesterov=True, momentum=0.9
        )
    ),
    "discretization": Case(
        lambda: chain(
            adapted(LAYERS.Discretization(num_bins=4, output_mode="one_hot"), X[:, :1]),
            LAYERS.Flatten(),
            dense(),
            shape=(1,),
        ),
        [X[:, :1]],
        [Y],
    ),
    "integer lookup": Case(
        lambda: chain(
            adapted(LAYERS.IntegerLookup(output_mode="multi_hot"), TOKENS),
            dense(),
            shape=(5,),
            dtype="int64",
        ),
        [TOKENS],
        [Y],
    ),
    "string lookup, tf-idf": Case(
        lambda: chain(
            adapted(LAYERS.StringLookup(output_mode="tf_idf"), WORDS),
            dense(),
            shape=(4,),
            dtype="string",
        ),
        [WORDS],
        [Y],
    ),
    "text vectorization": Case(
        lambda: chain(
            adapted(LAYERS.TextVectorization(output_mode="multi_hot"), WORDS[:, 0]),
            dense(),
            shape=(),
            dtype="string",
        ),
        [WORDS[:, 0]],
        [Y],
    ),
    "augmentation": Case(
        lambda: chain(
            LAYERS.RandomFlip(seed=5),
            LAYERS.RandomContrast(0.2, seed=6),
            LAYERS.Rescaling(0.01),
            LAYERS.Flatten(),
            dense(),
            shape=(6, 6, 3),
        ),
        [IMAGES],
        [Y],
    ),
    "model in a model": Case(
        lambda: chain(
            keras.Sequential([dense(4), LAYERS.BatchNormalization(momentum=0.5)]),
            keras.Sequential([dense(4), LAYERS.Dropout(0.2, seed=1), dense()]),
        ),
        [X],
        [Y],
    ),
    "several optimizers": Case(several_optimizers, [X], [Y]),
    "no decay of some": Case(lambda: chain(dense(4), dense(), optimizer=some_decay()), [X], [Y]),
    "metric in call": Case(
        lambda: compiled(Tracked(), metrics=["mae"]),
        [X],
        [Y],
        specs=[tf.TensorSpec([None, 3], tf.float32, "x")],
    ),
    "EfficientNet in small": Case(efficient, [IMAGES], [CLASS]),
}
