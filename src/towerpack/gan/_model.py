"""The model of two players."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from towerpack.gan.losses import Loss, began, non_saturating
from towerpack.model import ModelDesc
from towerpack.nn import expose, get_current_tower_context, summary

G_LOSS, D_LOSS = "g_loss", "d_loss"


class GANModelDesc(ModelDesc):
    """A model whose variables belong to a generator or to a discriminator, by their scope.

        def build_graph(self, image, z):
            with scope("gen"):
                fake = expose("fake", self.generator(z))
            with scope("discrim"):
                logits_real = self.discriminator(image)  # decorated with @auto_reuse_scope
                logits_fake = self.discriminator(fake)
            return self.build_losses(logits_real, logits_fake)

    `optimizer()` gives one, of which each player gets a copy, or
    `{'g_optimizer': …, 'd_optimizer': …}`. The generator alone is averaged by
    `{'g_optimizer': WeightEMA(…), …}`.

    Attributes:
        generator_scope: Names of the generator's variables begin with it and a slash.
        discriminator_scope: Likewise of the discriminator.
    """

    generator_scope: str = "gen"
    discriminator_scope: str = "discrim"

    def build_losses(
        self, logits_real: tf.Tensor, logits_fake: tf.Tensor, loss: Loss = non_saturating
    ) -> tf.Tensor:
        """Costs of both players by one of `towerpack.gan.losses`; for `build_graph` to return.

        The shares of real and of generated data that the discriminator takes for real (logits above
        0) are reported, too.

        Args:
            logits_real: The discriminator's, of real data.
            logits_fake: Of generated data.
            loss: Takes both.
        """
        for name, logits in (("real_as_real", logits_real), ("fake_as_real", logits_fake)):
            share = tf.reduce_mean(tf.cast(logits > 0, tf.float32))
            summary.moving_average(f"discriminator/{name}", share)
        costs = loss(logits_real, logits_fake)
        return self.set_costs(generator=costs.generator, discriminator=costs.discriminator)

    def build_began_losses(
        self,
        error_real: tf.Tensor,
        error_fake: tf.Tensor,
        *,
        gamma: float = 0.5,
        rate: float = 0.001,
    ) -> tf.Tensor:
        """Costs by `losses.began`, whose control `k` is a variable that each training step moves.

        Args:
            error_real: Scalar, as there.
            error_fake: Scalar.
            gamma: As there.
            rate: As there.
        """
        k = tf.compat.v1.get_variable("began_k", [], initializer=tf.zeros, trainable=False)
        given = began(error_real, error_fake, k.read_value(), gamma=gamma, rate=rate)
        if self.training:
            k.assign(given.k)
        summary.scalar("began/k", given.k)
        summary.moving_average("began/measure", given.measure)
        return self.set_costs(generator=given.generator, discriminator=given.discriminator)

    def set_costs(self, *, generator: Any, discriminator: Any) -> tf.Tensor:
        """Say what each player minimizes; outside of any scope, for `build_graph` to return.

        They are exposed and reported as 'g_loss' and 'd_loss'.

        Args:
            generator: Scalar.
            discriminator: Scalar.

        Returns:
            Their sum, as the run's 'cost': that it is finite is all that it tells.
        """
        for name, cost in ((G_LOSS, generator), (D_LOSS, discriminator)):
            summary.moving_average(name, expose(name, cost))
        outputs = get_current_tower_context().outputs
        return tf.add_n([tf.cast(outputs[name], tf.float32) for name in (G_LOSS, D_LOSS)])
