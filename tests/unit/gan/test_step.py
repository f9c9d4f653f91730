"""Who moves what and when; mistakes are told before the first step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import cv2
import keras
import numpy as np
import pytest
import tensorflow as tf

from scaling import sample
from towerpack import CallbackError, ConfigError, LayerError, ModelSaver
from towerpack.dataflow import (
    BatchData,
    DataFromArrays,
    FixedSizeData,
    JoinData,
    MapData,
    RepeatedData,
)
from towerpack.gan import (
    FID,
    GANModelDesc,
    GANStep,
    GANTrainer,
    RandomZData,
    SampleGrid,
    SeparateGANStep,
    SeparateGANTrainer,
    spectral_norm,
)
from towerpack.nn import FullyConnected, auto_reuse_scope, expose, regularize_cost, scope
from towerpack.training import TrainConfig, WeightEMA, build_step

X = np.random.default_rng(0).normal(3.0, 1.0, (16, 4)).astype(np.float32)
Z = np.random.default_rng(1).uniform(-1, 1, (16, 2)).astype(np.float32)


def sgd() -> Any:
    return keras.optimizers.SGD(1.0)


def momentum() -> Any:
    return keras.optimizers.SGD(0.05, momentum=0.9)


class Model(GANModelDesc):
    scopes = ("gen", "discrim")
    make: Any = staticmethod(momentum)
    inside = False  # Costs are named inside of a scope.

    def inputs(self):
        return [
            tf.TensorSpec([None, 4], tf.float32, "x"),
            tf.TensorSpec([None, 2], tf.float32, "z"),
        ]

    @auto_reuse_scope
    def discriminator(self, x):
        return FullyConnected("fc", x, 3) @ tf.ones([3, 1])

    def build_graph(self, x, z):
        gen, discrim = self.scopes
        with scope(gen):
            fake = expose("fake", FullyConnected("fc", z, 4))
            picture = expose("picture", tf.reshape(fake, [-1, 2, 2, 1]))
            expose("turned", picture[:, ::-1, ::-1])
        with scope(discrim), spectral_norm(power_iterations=3):
            logits = self.discriminator(x), self.discriminator(fake)
        if self.inside:
            with scope(discrim):
                return self.build_losses(*logits)
        return self.build_losses(*logits)

    def optimizer(self):
        return self.make()


def with_(**attributes: Any) -> Any:
    return type(
        "Model", (Model,), {k: staticmethod(v) if callable(v) else v for k, v in attributes.items()}
    )()


@pytest.mark.parametrize(
    "costs", [lambda real, fake: (real, fake), lambda real, fake: real, lambda real, fake: None]
)
def test_a_loss_that_does_not_name_its_costs_is_refused(costs: Any) -> None:
    class Own(Model):
        def build_losses(self, *logits: Any) -> Any:
            return super().build_losses(*logits, loss=costs)

    with pytest.raises(
        LayerError, match=r"must return Costs, got(?s:.*)Costs\(generator=…, discriminator=…"
    ):
        build_step(Own(), step=GANStep())


def test_a_cost_without_gradient_is_named_with_its_player() -> None:
    class Stopped(Model):
        def build_losses(self, real: Any, fake: Any) -> Any:
            return super().build_losses(real, tf.stop_gradient(fake))

    with pytest.raises(LayerError, match=r"'g_loss' must depend on the variables of the generator"):
        build_step(Stopped(), step=GANStep())


def test_a_step_for_one_cost_names_the_trainer_of_two() -> None:
    with pytest.raises(LayerError, match=r"to fix .*GANTrainer"):
        build_step(Model())


def test_players_move_at_their_own_steps() -> None:
    make = lambda: {"g_optimizer": WeightEMA(momentum(), 0.5), "d_optimizer": momentum()}  # noqa: E731
    train = build_step(with_(make=make), step=SeparateGANStep(1, 3))
    groups = train.variables()
    of_g = {**groups["g_optimizer"], **{n: v for n, v in groups["model"].items() if "gen/" in n}}
    of_d = {n: v for n, v in groups["model"].items() if n == "discrim/fc/kernel"}
    moved = []
    for _ in range(5):
        before = [{n: v.numpy() for n, v in of.items()} for of in (of_g, of_d)]
        train(X, Z)
        moved.append(
            [
                {n for n, v in of.items() if np.any(v.numpy() != b[n])}
                for of, b in zip((of_g, of_d), before, strict=True)
            ]
        )
    assert [g == set(of_g) - {"learning_rate"} for g, _ in moved] == [
        True,
        False,
        False,
        True,
        False,
    ]
    assert [bool(g) for g, _ in moved] == [True, False, False, True, False]
    assert all(d == set(of_d) for _, d in moved)
    assert int(groups["g_optimizer"]["iteration"]) == 2
    # What the discriminator computes with has a greatest singular value of 1.
    kernel, bias = (groups["model"][f"discrim/fc/{n}"].numpy() for n in ("kernel", "bias"))
    given = train.tower(X, Z, is_training=False).outputs["discrim/fc/output"]
    np.testing.assert_allclose(given, X @ kernel / np.linalg.norm(kernel, 2) + bias, rtol=0.02)


def test_one_optimizer_is_one_for_each() -> None:
    train = build_step(Model(), step=GANStep())
    train(X, Z)
    groups = train.variables()
    assert all(int(groups[name]["iteration"]) == 1 for name in ("g_optimizer", "d_optimizer"))
    both = build_step(
        with_(make=lambda: {"g_optimizer": momentum(), "d_optimizer": momentum()}), step=GANStep()
    )
    both(X, Z)
    for name, value in train.variables()["model"].items():
        np.testing.assert_array_equal(value, both.variables()["model"][name])


@pytest.mark.parametrize("name", ["generator", "discriminator", "both"])
def test_a_term_added_to_the_cost_counts_for_the_player_whose_variables_it_has(name: str) -> None:
    class Decayed(Model):
        make = staticmethod(sgd)

        def build_graph(self, x, z):
            cost = super().build_graph(x, z)
            scopes = {"generator": "gen/", "discriminator": "discrim/", "both": ""}
            return cost + regularize_cost(f"{scopes[name]}.*kernel", lambda w: tf.reduce_sum(w))

    plain, decayed = (build_step(m, step=GANStep()) for m in (with_(make=sgd), Decayed()))
    for train in (plain, decayed):
        train(X, Z)
    players = {"generator": "gen", "discriminator": "discrim"}
    for player, prefix in players.items():
        kernel = f"{prefix}/fc/kernel"
        moved = [train.variables()["model"][kernel].numpy() for train in (plain, decayed)]
        np.testing.assert_allclose(moved[0] - moved[1], float(name in (player, "both")), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda model, cost: 0.5 * cost, "0.5 times"),
        (lambda model, cost: tf.stop_gradient(cost), "does not contain the cost"),
        (lambda model, cost: tf.constant(1.0), "does not contain the cost"),
    ],
)
def test_another_cost_than_the_sum_is_refused(change: Any, got: str) -> None:
    class Changed(Model):
        def build_graph(self, x, z):
            return change(self, super().build_graph(x, z))

    with pytest.raises(LayerError, match="must return the cost from build_losses") as caught:
        build_step(Changed(), step=GANStep())
    assert got in str(caught.value)


SHARED = dict.fromkeys(("g_optimizer", "d_optimizer"), momentum())


@pytest.mark.parametrize(
    ("model", "step", "error", "message"),
    [
        (with_(scopes=("other", "discrim")), GANStep(), ConfigError, "generator has no trainable"),
        (with_(scopes=("gen", "other")), GANStep(), ConfigError, "discriminator has no trainable"),
        (with_(), GANStep("gen", "gen/fc"), ConfigError, "but is in both"),
        (with_(scopes=("gen", "a/b")), GANStep("gen", "a"), None, ""),
        (with_(), GANStep("gen/fc", "discrim/fc/kernel"), ConfigError, "discriminator has no"),
        (with_(make=lambda: SHARED), GANStep(), ConfigError, "same optimizer object"),
        (with_(make=lambda: {"g_optimizer": momentum()}), GANStep(), ConfigError, "'d_optimizer'"),
        (with_(make=lambda: WeightEMA(momentum())), GANStep(), ConfigError, "WeightEMA cannot be"),
        (with_(make=lambda: tf.compat.v1.train.AdamOptimizer(0.1)), GANStep(), None, ""),
        (with_(inside=True), GANStep(), LayerError, "must expose the output 'd_loss'"),
    ],
)  # fmt: skip
def test_mistakes(model: Any, step: Any, error: Any, message: str) -> None:
    if error is None:
        build_step(model, step=step)(X, Z)
        return
    with pytest.raises(error, match=message):
        build_step(model, step=step)


def test_a_variable_of_neither_player_is_told_and_may_be_frozen(tmp_path: Path) -> None:
    class Third(Model):
        def build_graph(self, x, z):
            return super().build_graph(FullyConnected("features", x, 4), z)

    with pytest.raises(ConfigError, match=r"'features/kernel' must be in .* but is in neither"):
        build_step(Third(), step=GANStep())
    flow = BatchData(DataFromArrays(X, Z), 8)
    config = TrainConfig(
        model=Third(), dataflow=flow, frozen="features/.*", max_epoch=1, run_dir=tmp_path
    )
    GANTrainer(config).train()


def test_periods() -> None:
    for periods in ((0, 1), (2, 3)):
        with pytest.raises(ConfigError, match="d_period and g_period"):
            SeparateGANTrainer(None, *periods)


def train(run_dir: Path, *callbacks: Any, step: Any = None, **settings: Any) -> Any:
    flow = JoinData([BatchData(DataFromArrays(X), 8), RandomZData([8, 2])])
    config = TrainConfig(
        model=with_(make=lambda: {"g_optimizer": WeightEMA(momentum()), "d_optimizer": momentum()}),
        dataflow=flow, callbacks=[*callbacks], monitors=[], max_epoch=2, seed=1, run_dir=run_dir,
        **settings,
    )  # fmt: skip
    trainer = GANTrainer(config, step=step)
    trainer.train()
    return trainer


def test_the_distance_of_what_is_generated_is_monitored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    real, noise = BatchData(DataFromArrays(X), 4), FixedSizeData(RandomZData([50, 2]), 3)
    seen: list[Any] = []

    def network(data: Any) -> Any:
        seen.append(np.asarray(data))
        return seen[-1]

    fid = FID(real, network, "gen/fake", noise, ema=True)
    trainer = train(tmp_path, fid, ModelSaver())
    first, second = (value for _, value in trainer.monitors.history("fid"))
    assert 0 < second < first  # from 0 towards the data, with a mean of 3
    assert [len(part) for part in seen] == [4] * 4 + [50] * 6  # real ones once
    assert train(tmp_path, step=SeparateGANStep(1, 3)).was_complete  # but told what was changed
    assert re.search(r"step.g_period +1 +3 +new", caplog.text)
    with pytest.raises(ConfigError, match="list cannot be copied"):
        train(tmp_path / "list", optimizer=[momentum()])
    with pytest.raises(ConfigError, match="needs finite"):
        FID(real, network, "gen/fake", RandomZData([50, 2]))


def test_a_grid_shows_outputs_side_by_side(tmp_path: Path) -> None:
    outputs = ["gen/picture", "gen/turned"]
    noise = MapData(RandomZData([6, 2]), lambda point: [point[0].astype(np.float64)])
    train(tmp_path, SampleGrid(outputs, noise, columns=3, value_range=(-2, 2)))
    grid = cv2.imread(str(tmp_path / "samples" / "epoch-0002.png"))[..., 0]
    cells = [[grid[y : y + 64, x : x + 64] for x in range(0, 408, 68)] for y in (0, 68)]
    assert grid.shape == (2 * 68 - 4, 6 * 68 - 4)
    for row in cells:
        for one, other in zip(row[::2], row[1::2], strict=True):
            np.testing.assert_array_equal(one, other[::-1, ::-1])
    assert len({cell.tobytes() for row in cells for cell in row}) == 12


@pytest.mark.parametrize(
    ("output", "flow", "message"),
    sample(
        [
            ("gen/fake", RandomZData([4, 2]), r"got \(4, 4\)"),
            ("gen/fake", JoinData([RandomZData([4, 2])] * 2), "float32, float32"),
            ("gen/fake", RepeatedData(DataFromArrays(X[:0]), 1), "nothing"),
            ("gen/fake", BatchData(DataFromArrays(Z.astype(str)), 4), "<U"),
        ],
        at_least=2,
    ),
)
def test_grids_that_cannot_be_drawn(output: str, flow: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CallbackError, match=message):
        train(tmp_path, SampleGrid(output, flow))
