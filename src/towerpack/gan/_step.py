"""One step of two players."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from towerpack._core.errors import ConfigError, LayerError
from towerpack.gan._model import D_LOSS, G_LOSS
from towerpack.training import ProxyOptimizer, StepContext, StepSetup, TrainStep

GENERATOR, DISCRIMINATOR = "g_optimizer", "d_optimizer"


class GANStep(TrainStep):
    """Both players move at once: their costs come from one call of the tower, on the same weights.

    Args:
        generator_scope: Names of the generator's variables begin with it and a slash.
        discriminator_scope: Likewise of the discriminator.
    """

    def __init__(self, generator_scope: str = "gen", discriminator_scope: str = "discrim") -> None:
        # The discriminator first, as its checks and updates come in this order.
        self._scopes = {DISCRIMINATOR: discriminator_scope, GENERATOR: generator_scope}

    def build(self, setup: StepSetup) -> None:
        """Give each player its variables and optimizer.

        Raises:
            ConfigError: A player has no variables, a variable has no player or two, or there are
                not two optimizers and not one to copy.
        """
        of_player = _by_player(setup.trainable, self._scopes)
        setup.given = _two(setup.given)
        self._players = {
            name: (variables, setup.optimizer(name, variables))
            for name, variables in of_player.items()
        }

    def __call__(self, context: StepContext, batch: Sequence[tf.Tensor]) -> None:
        """Minimize both costs.

        Raises:
            LayerError: The tower exposes none.
        """
        outputs = context.tower(*batch).outputs
        for name, (variables, optimizer) in self._players.items():
            cost = D_LOSS if name == DISCRIMINATOR else G_LOSS
            if cost not in outputs:
                raise LayerError(
                    f"The tower has no output '{cost}'.",
                    fix="return self.build_losses(logits_real, logits_fake) or "
                    "self.set_costs(generator=…, discriminator=…) from build_graph, "
                    "called outside of any scope",
                )
            context.minimize(outputs[cost], variables, self.when(name, optimizer, context.step))

    def when(self, name: str, optimizer: Any, step: tf.Variable) -> Any:
        """An optimizer as it is to be used: at every step."""
        return optimizer


class SeparateGANStep(GANStep):
    """Each player moves at the steps that its period divides, both at the very first one.

    What an idle player has (weights, slots, averages, the count of its optimizer) stays as it is.
    Its gradients are computed all the same.

    Args:
        d_period: Steps from one move of the discriminator to the next.
        g_period: Likewise of the generator. A Wasserstein critic that is to move five times as
            often: `g_period=5`.
        generator_scope: As in `GANStep`.
        discriminator_scope: As in `GANStep`.

    Raises:
        ConfigError: A period is less than 1, or there are steps at which nobody moves.
    """

    def __init__(
        self,
        d_period: int = 1,
        g_period: int = 1,
        generator_scope: str = "gen",
        discriminator_scope: str = "discrim",
    ) -> None:
        super().__init__(generator_scope, discriminator_scope)
        if min(d_period, g_period) != 1:
            raise ConfigError(
                f"SeparateGANStep({d_period=}, {g_period=}).",
                expected="integers of at least 1, one of them 1",
            )
        self._periods = {DISCRIMINATOR: int(d_period), GENERATOR: int(g_period)}

    def when(self, name: str, optimizer: Any, step: tf.Variable) -> Any:
        """An optimizer that moves at its steps."""
        period = self._periods[name]
        return optimizer if period == 1 else _Periodic(optimizer, period, step)


class _Periodic(ProxyOptimizer):
    # Around what a step was given, a scaled loss included, which wrappers of users are not.
    def __init__(self, optimizer: Any, period: int, step: tf.Variable) -> None:
        self.inner = optimizer
        self._period, self._step = period, step

    def apply(self, gradients: Sequence[Any]) -> None:
        moves = tf.equal(tf.math.floormod(self._step, self._period), 0)
        tf.cond(moves, lambda: self.inner.apply(gradients), lambda: None)


def _by_player(
    trainable: Mapping[str, tf.Variable], scopes: Mapping[str, str]
) -> dict[str, dict[str, tf.Variable]]:
    found = {
        player: {n: v for n, v in trainable.items() if n.startswith(f"{scope}/")}
        for player, scope in scopes.items()
    }
    d, g = scopes[DISCRIMINATOR], scopes[GENERATOR]
    claims = {n: sum(n in own for own in found.values()) for n in trainable}
    if both := [n for n, count in claims.items() if count == 2]:
        raise ConfigError(
            f"Variables belong to both players: {', '.join(both)}.",
            got=f"the scopes '{g}' and '{d}'",
            fix="give the players scopes of which none is below the other",
        )
    for player, what in ((GENERATOR, "generator"), (DISCRIMINATOR, "discriminator")):
        if not found[player]:
            raise ConfigError(
                f"The {what} has no variables to train.",
                got=f"trainable variables: {', '.join(trainable) or 'none'}",
                expected=f"names that begin with '{scopes[player]}/'",
                fix=f"build it inside of `with scope('{scopes[player]}'):`, "
                f"or set the model's {what}_scope",
            )
    if neither := [n for n, count in claims.items() if count == 0]:
        raise ConfigError(
            f"Variables belong to neither player: {', '.join(neither)}.",
            expected=f"names that begin with '{g}/' or '{d}/'",
            fix="build them in one of these scopes, or leave them as they are: "
            "TrainConfig(frozen=…)",
        )
    return found


def _two(given: Mapping[str, Any]) -> dict[str, Any]:
    """An optimizer for each player.

    Raises:
        ConfigError: It is one object for both, or one that cannot be copied.
    """
    if set(given) == {"optimizer"}:
        one = given["optimizer"]
        return {GENERATOR: _copied(one), DISCRIMINATOR: one}
    if GENERATOR in given and given[GENERATOR] is given.get(DISCRIMINATOR):
        raise ConfigError(
            "Both players have the same optimizer object, whose state is for one set of variables.",
            got=f"{given[GENERATOR]!r} as 'g_optimizer' and as 'd_optimizer'",
            fix="make two, or give that one alone: each player then gets a copy",
        )
    return dict(given)


def _copied(optimizer: Any) -> Any:
    if isinstance(optimizer, str):
        return optimizer
    if isinstance(optimizer, keras.optimizers.Optimizer):
        return type(optimizer).from_config(optimizer.get_config())
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return copy.deepcopy(optimizer)
    raise ConfigError(
        f"{type(optimizer).__name__} cannot be copied for the second player.",
        fix="have optimizer() return {'g_optimizer': …, 'd_optimizer': …}",
    )
