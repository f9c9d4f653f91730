"""One step of two players, and trainers that take it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from towerpack._core.errors import ConfigError, LayerError
from towerpack.gan._model import D_LOSS, G_LOSS, SUM
from towerpack.nn.initial_values import lifted
from towerpack.tower import TowerTrace
from towerpack.training import (
    ProxyOptimizer,
    StepContext,
    StepSetup,
    TrainConfig,
    Trainer,
    TrainStep,
)
from towerpack.training.trainers.multi_gpu import Devices, synchronous

GENERATOR, DISCRIMINATOR = "g_optimizer", "d_optimizer"
_COSTS = {DISCRIMINATOR: D_LOSS, GENERATOR: G_LOSS}
_PLAYERS = {DISCRIMINATOR: "discriminator", GENERATOR: "generator"}


class GANStep(TrainStep):
    """Both players move at once: their costs come from one call of the tower, on the same weights.

    Args:
        generator_scope: Names of the generator's variables begin with it and a slash.
        discriminator_scope: Likewise of the discriminator.
    """

    def __init__(self, generator_scope: str = "gen", discriminator_scope: str = "discrim") -> None:
        # The discriminator first: updates come in this order.
        self._scopes = {DISCRIMINATOR: discriminator_scope, GENERATOR: generator_scope}
        self._periods = {DISCRIMINATOR: 1, GENERATOR: 1}

    def settings(self) -> Mapping[str, int]:
        return {f"step.{player[0]}_period": period for player, period in self._periods.items()}

    def build(self, setup: StepSetup) -> None:
        """Give each player its variables and optimizer.

        Raises:
            ConfigError: A player has no variables, a variable not one player, or an optimizer two.
            LayerError: The tower's cost is not the sum of both costs, plus terms.
        """
        _check_cost(setup.trace)
        of_player = _by_player(setup.trainable, self._scopes)
        setup.available = _two(setup.available)
        self._players = {n: (own, setup.optimizer(n, own)) for n, own in of_player.items()}

    def __call__(self, context: StepContext, batch: Sequence[tf.Tensor]) -> None:
        """Minimize both costs."""
        result = context.tower(*batch)
        outputs, cost = result.outputs, result.cost
        added = [] if cost is None or cost is outputs.get(SUM, cost) else [cost]
        for name, (variables, optimizer) in self._players.items():
            if _COSTS[name] not in outputs:
                raise LayerError(
                    f"The tower has no output '{_COSTS[name]}'.",
                    fix="build_losses(…) or set_costs(…) in build_graph, outside of any scope",
                )
            if self._periods[name] > 1:
                optimizer = _Periodic(optimizer, self._periods[name], context.step)
            try:
                context.minimize([outputs[_COSTS[name]], *added], variables, optimizer)
            except LayerError as error:
                what = f"'{_COSTS[name]}' depends on no variable of the {_PLAYERS[name]}."
                fix = "compute it from the outputs of both networks, without tf.stop_gradient"
                raise LayerError(what, got=error.got, fix=fix) from error


class SeparateGANStep(GANStep):
    """Each player moves at the steps that its period divides, both at the very first one.

    What an idle player has (weights, slots, averages, the count of its optimizer) stays as it is.
    Its gradients are computed all the same.

    Args:
        d_period: Steps from one move of the discriminator to the next.
        g_period: Likewise of the generator: 5 for a critic that moves five times as often.
        scopes: As in `GANStep`.

    Raises:
        ConfigError: A period is less than 1, or there are steps at which nobody moves.
    """

    def __init__(self, d_period: int = 1, g_period: int = 1, *scopes: str) -> None:
        super().__init__(*scopes)
        if min(d_period, g_period) != 1 or any(int(p) != p for p in (d_period, g_period)):
            raise ConfigError(
                f"SeparateGANStep({d_period=}, {g_period=}).",
                expected="whole numbers, one of them 1",
            )
        self._periods = {DISCRIMINATOR: int(d_period), GENERATOR: int(g_period)}


class GANTrainer(Trainer):
    """Train a `GANModelDesc`.

    Args:
        config: What to train; None to leave that to `launch_train_with_config`.
        devices: None for one replica. Otherwise one on each device, as in `SyncMultiGPUTrainer`:
            a step is one on a batch that is as many times larger.
        step: `GANStep()` by default.
    """

    def __init__(
        self,
        config: TrainConfig | None = None,
        devices: Devices | None = None,
        *,
        step: TrainStep | None = None,
    ) -> None:
        distribution = None if devices is None else synchronous(devices, type(self).__name__)
        super().__init__(config, step=step or GANStep(), distribution=distribution)


class SeparateGANTrainer(GANTrainer):
    """`GANTrainer(config, devices, step=SeparateGANStep(d_period, g_period))`."""

    def __init__(
        self,
        config: TrainConfig | None = None,
        d_period: int = 1,
        g_period: int = 1,
        devices: Devices | None = None,
    ) -> None:
        super().__init__(config, devices, step=SeparateGANStep(d_period, g_period))


class _Periodic(ProxyOptimizer):
    # It stands around a scaled loss, too, which wrappers of users must not.
    def __init__(self, optimizer: Any, period: int, step: tf.Variable) -> None:
        self.inner = optimizer
        self._period, self._step = period, step

    def apply(self, gradients: Sequence[Any]) -> None:
        moves = tf.equal(tf.math.floormod(self._step, self._period), 0)
        tf.cond(moves, lambda: self.inner.apply(gradients), lambda: None)


def _check_cost(trace: TowerTrace) -> None:
    total, cost = trace.result.outputs.get(SUM), trace.result.cost
    if total is None:  # The costs are exposed without `set_costs`.
        return
    with trace.graph.as_default():
        (slope,) = tf.gradients(cost, total, tf.constant(1.0))
    factor = 0.0 if slope is None else float(lifted(slope, SUM))
    if factor != 1.0:
        raise LayerError(
            "build_graph returns a cost that is not the sum of both players' costs, plus terms.",
            got=f"{factor} times the sum" if factor else "a tensor that does not depend on the sum",
            expected="what build_losses(…) or set_costs(…) returned, with or without added terms",
            fix="return it as it is, and scale the players' costs in set_costs(…)",
        )


def _by_player(
    trainable: Mapping[str, tf.Variable], scopes: Mapping[str, str]
) -> dict[str, dict[str, tf.Variable]]:
    found = {
        player: {n: v for n, v in trainable.items() if n.startswith(f"{scope}/")}
        for player, scope in scopes.items()
    }
    for player, own in found.items():
        if not own:
            raise ConfigError(
                f"The {_PLAYERS[player]} has no variables.",
                got=f"trainable variables: {', '.join(trainable) or 'none'}",
                expected=f"some in the scope '{scopes[player]}'",
                fix="step=GANStep('generator', 'critic') names other scopes",
            )
    for name in trainable:
        players = sum(name in own for own in found.values())
        if players != 1:
            raise ConfigError(
                f"'{name}' belongs to {'both players' if players else 'neither player'}.",
                got=f"the scopes {sorted(scopes.values())}",
                fix="build it in one of two scopes side by side, or leave it as it is: "
                "TrainConfig(frozen=…)",
            )
    return found


def _two(given: Mapping[str, Any]) -> dict[str, Any]:
    if set(given) == {"optimizer"}:
        return {GENERATOR: _copied(given["optimizer"]), DISCRIMINATOR: given["optimizer"]}
    if GENERATOR in given and given[GENERATOR] is given.get(DISCRIMINATOR):
        raise ConfigError(
            "Both players have the same optimizer object, whose state is for one set of variables.",
            fix="make two, or give that one alone: each player then gets a copy",
        )
    return dict(given)


def _copied(optimizer: Any) -> Any:
    if isinstance(optimizer, keras.optimizers.Optimizer):
        return type(optimizer).from_config(optimizer.get_config())
    if isinstance(optimizer, str | tf.compat.v1.train.Optimizer):
        return copy.deepcopy(optimizer)
    raise ConfigError(
        f"{type(optimizer).__name__} cannot be copied for the second player.",
        fix="have optimizer() return {'g_optimizer': …, 'd_optimizer': …}",
    )
