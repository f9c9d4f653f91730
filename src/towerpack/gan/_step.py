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
    """Training step that updates generator and discriminator together, from one call of the tower.

    Args:
        generator_scope: Scope of the generator's variables.
        discriminator_scope: Scope of the discriminator's variables.
    """

    def __init__(self, generator_scope: str = "gen", discriminator_scope: str = "discrim") -> None:
        # Updates follow this order, so the discriminator comes first.
        self._scopes = {DISCRIMINATOR: discriminator_scope, GENERATOR: generator_scope}
        self._periods = {DISCRIMINATOR: 1, GENERATOR: 1}

    def settings(self) -> Mapping[str, int]:
        return {f"step.{player[0]}_period": period for player, period in self._periods.items()}

    def build(self, setup: StepSetup) -> None:
        """Assign variables and an optimizer to each player.

        Args:
            setup: Traced tower, variables and optimizers.

        Raises:
            ConfigError: A player has no variables, a variable does not belong to exactly one
                player, or both players have the same optimizer object.
            LayerError: The tower does not return the sum of both costs, plus optional terms.
        """
        _check_cost(setup.trace)
        by_player = _by_player(setup.trainable, self._scopes)
        setup.available = _two(setup.available)
        self._players = {name: (v, setup.optimizer(name, v)) for name, v in by_player.items()}

    def __call__(self, context: StepContext, batch: Sequence[tf.Tensor]) -> None:
        result = context.tower(*batch)
        outputs, cost = result.outputs, result.cost
        added = [] if cost is None or cost is outputs.get(SUM, cost) else [cost]
        for name, (variables, optimizer) in self._players.items():
            if _COSTS[name] not in outputs:
                raise LayerError(
                    f"The tower function must expose the output '{_COSTS[name]}'.",
                    fix="call build_losses(…) or set_costs(…) in build_graph, outside of any scope",
                )
            if self._periods[name] > 1:
                optimizer = _Periodic(optimizer, self._periods[name], context.step)
            try:
                context.minimize([outputs[_COSTS[name]], *added], variables, optimizer)
            except LayerError as error:
                raise LayerError(
                    f"The cost '{_COSTS[name]}' must depend on the variables of the "
                    f"{_PLAYERS[name]}.",
                    got=error.got,
                    fix="compute the cost from the outputs of both networks, without "
                    "tf.stop_gradient",
                ) from error


class SeparateGANStep(GANStep):
    """Training step that updates generator and discriminator with different periods.

    The first step updates both networks. A step that skips a network keeps its weights, optimizer
    state and averages, but still computes its gradients.

    Args:
        d_period: Number of steps between updates of the discriminator.
        g_period: Number of steps between updates of the generator, such as 5 for a Wasserstein GAN.
        *scopes: Same as for `GANStep`.

    Raises:
        ConfigError: The periods are not positive integers, or neither is 1.
    """

    def __init__(self, d_period: int = 1, g_period: int = 1, *scopes: str) -> None:
        super().__init__(*scopes)
        if min(d_period, g_period) != 1 or any(int(p) != p for p in (d_period, g_period)):
            raise ConfigError(
                "d_period and g_period must be positive integers, and at least one must be 1, got "
                f"{d_period} and {g_period}."
            )
        self._periods = {DISCRIMINATOR: int(d_period), GENERATOR: int(g_period)}


class GANTrainer(Trainer):
    """Trainer for a `GANModelDesc`.

    Args:
        config: Configuration; None if `launch_train_with_config` provides it.
        devices: One device per replica, as in `SyncMultiGPUTrainer`; None for a single replica.
            Each replica gets one batch per step.
        step: Training step; None for `GANStep()`.
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
    """Trainer with `step=SeparateGANStep(d_period, g_period)`.

    Args:
        config, devices: Same as for `GANTrainer`.
        d_period, g_period: Same as for `SeparateGANStep`.
    """

    def __init__(
        self,
        config: TrainConfig | None = None,
        d_period: int = 1,
        g_period: int = 1,
        devices: Devices | None = None,
    ) -> None:
        super().__init__(config, devices, step=SeparateGANStep(d_period, g_period))


class _Periodic(ProxyOptimizer):
    # Unlike wrappers of users, this wrapper also accepts an optimizer with loss scaling.
    def __init__(self, optimizer: Any, period: int, step: tf.Variable) -> None:
        self.inner = optimizer
        self._period, self._step = period, step

    def apply(self, gradients: Sequence[Any]) -> None:
        moves = tf.equal(tf.math.floormod(self._step, self._period), 0)
        tf.cond(moves, lambda: self.inner.apply(gradients), lambda: None)


def _check_cost(trace: TowerTrace) -> None:
    total, cost = trace.result.outputs.get(SUM), trace.result.cost
    if total is None:  # The model exposes the costs without `set_costs`.
        return
    with trace.graph.as_default():
        (slope,) = tf.gradients(cost, total, tf.constant(1.0))
    factor = 0.0 if slope is None else float(lifted(slope, SUM))
    if factor != 1.0:
        raise LayerError(
            "build_graph must return the cost from build_losses(…) or set_costs(…). Terms may be "
            "added, but the cost must not be scaled or replaced.",
            got=f"{factor} times the cost" if factor else "a tensor that does not contain the cost",
            fix="return the cost unchanged, and scale the costs in the call of set_costs(…)",
        )


def _by_player(
    trainable: Mapping[str, tf.Variable], scopes: Mapping[str, str]
) -> dict[str, dict[str, tf.Variable]]:
    by_player = {
        player: {n: v for n, v in trainable.items() if n.startswith(f"{scope}/")}
        for player, scope in scopes.items()
    }
    for player, variables in by_player.items():
        if not variables:
            raise ConfigError(
                f"The {_PLAYERS[player]} has no trainable variables in its scope "
                f"'{scopes[player]}'.",
                got=f"trainable variables: {', '.join(trainable) or 'none'}",
                fix="pass the names of your scopes, as in step=GANStep('generator', 'critic')",
            )
    for name in trainable:
        players = sum(name in variables for variables in by_player.values())
        if players != 1:
            raise ConfigError(
                f"The variable '{name}' must be in exactly one of the scopes "
                f"{sorted(scopes.values())}, but is in {'both' if players else 'neither'}.",
                fix="build it in one of two separate scopes, or freeze it: TrainConfig(frozen=…)",
            )
    return by_player


def _two(optimizers: Mapping[str, Any]) -> dict[str, Any]:
    if set(optimizers) == {"optimizer"}:
        [optimizer] = optimizers.values()
        return {GENERATOR: _copied(optimizer), DISCRIMINATOR: optimizer}
    if GENERATOR in optimizers and optimizers[GENERATOR] is optimizers.get(DISCRIMINATOR):
        raise ConfigError(
            "The generator and the discriminator must not have the same optimizer object.",
            fix="create two optimizers, or return one from optimizer(), which is then copied",
        )
    return dict(optimizers)


def _copied(optimizer: Any) -> Any:
    if isinstance(optimizer, keras.optimizers.Optimizer):
        return type(optimizer).from_config(optimizer.get_config())
    if isinstance(optimizer, str | tf.compat.v1.train.Optimizer):
        return copy.deepcopy(optimizer)
    raise ConfigError(
        f"The optimizer {type(optimizer).__name__} cannot be copied for the second player.",
        fix="return {'g_optimizer': …, 'd_optimizer': …} from optimizer()",
    )
