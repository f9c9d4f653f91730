"""The model of two players, and the noise that one of them gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack.dataflow import FakeData, RepeatedData
from towerpack.gan.losses import Costs, Loss, began, non_saturating
from towerpack.model import ModelDesc
from towerpack.nn import expose, summary

G_LOSS, D_LOSS, SUM = "g_loss", "d_loss", "gan_loss"


class GANModelDesc(ModelDesc):
    """A model whose variables are the generator's or the discriminator's, by their scope.

        def build_graph(self, image, z):
            with scope("gen"):
                fake = expose("fake", self.generator(z))
            with scope("discrim"):
                logits_real = self.discriminator(image)  # decorated with @auto_reuse_scope
                logits_fake = self.discriminator(fake)
            return self.build_losses(logits_real, logits_fake)

    `optimizer()` gives one, of which each player gets a copy, or
    `{'g_optimizer': …, 'd_optimizer': …}`; `WeightEMA(…)` as the first averages the generator.
    """

    def build_losses(
        self, logits_real: tf.Tensor, logits_fake: tf.Tensor, loss: Loss = non_saturating
    ) -> tf.Tensor:
        """Costs of both players by one of `towerpack.gan.losses`; for `build_graph` to return.

        It reports what shares of real and of generated data the discriminator takes for real
        (logits above 0), too.

        Raises:
            LayerError: The loss returned something other than `Costs`.
        """
        for name, logits in (("real_as_real", logits_real), ("fake_as_real", logits_fake)):
            share = tf.reduce_mean(tf.cast(logits > 0, tf.float32))
            summary.moving_average(f"discriminator/{name}", share)
        costs: Any = loss(logits_real, logits_fake)
        if getattr(costs, "_fields", None) != Costs._fields:
            raise LayerError(
                "The loss does not name its costs.",
                got=type(costs).__name__,
                fix="return towerpack.gan.losses.Costs(generator=…, discriminator=…)",
            )
        return self.set_costs(**costs._asdict())

    def build_began_losses(
        self, error_real: tf.Tensor, error_fake: tf.Tensor, gamma: float = 0.5, rate: float = 0.001
    ) -> tf.Tensor:
        """Costs by `losses.began`, whose control `k` is a variable that each step moves."""
        k = tf.compat.v1.get_variable("began_k", [], initializer=tf.zeros, trainable=False)
        costs, k_next, measure = began(
            error_real, error_fake, k.read_value(), gamma=gamma, rate=rate
        )
        if self.training:
            k.assign(k_next)
        summary.scalar("began/k", k_next)
        summary.moving_average("began/measure", measure)
        return self.set_costs(**costs._asdict())

    def set_costs(self, *, generator: tf.Tensor, discriminator: tf.Tensor) -> tf.Tensor:
        """Say what each player minimizes (scalars); outside of any scope.

        They are exposed and reported as 'g_loss' and 'd_loss'. Their sum is exposed as 'gan_loss'.

        Returns:
            The sum, for `build_graph` to return. `build_graph` may add terms such as weight decay:
            each player minimizes them over its own variables.
        """
        costs: list[Any] = []
        for name, cost in ((G_LOSS, generator), (D_LOSS, discriminator)):
            costs.append(tf.cast(expose(name, cost), tf.float32))
            summary.moving_average(name, costs[-1])
        # Without gradient: what is added to the sum is all that the returned cost minimizes.
        return expose(SUM, tf.stop_gradient(costs[0] + costs[1]))


class RandomZData(RepeatedData):
    """Noise without end, uniform in [-1, 1): `(z float32,)`.

        JoinData([images, RandomZData([64, 100])])  # batches of both

    Contract: infinite; random, a function of the run's seed and the position alone; thread- and
    fork-safe; resumable at once.

    Args:
        shape: Of each datapoint, the batch included if the rest of the flow gives batches.
        seed: For this noise alone; by default the run's.
    """

    def __init__(self, shape: Sequence[int], *, seed: int | None = None) -> None:
        super().__init__(FakeData([shape], size=1 << 20, domain=(-1.0, 1.0), seed=seed))
