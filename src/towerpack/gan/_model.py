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
    """Base class of models with two players, a generator and a discriminator, each in a scope.

        def build_graph(self, image, z):
            with scope("gen"):
                fake = expose("fake", self.generator(z))
            with scope("discrim"):
                logits_real = self.discriminator(image)  # decorated with @auto_reuse_scope
                logits_fake = self.discriminator(fake)
            return self.build_losses(logits_real, logits_fake)

    `optimizer()` returns one optimizer, of which each player gets a copy, or
    `{'g_optimizer': …, 'd_optimizer': …}`. Wrap the generator's optimizer in `WeightEMA(…)` to
    average the generator's weights.
    """

    def build_losses(
        self, logits_real: tf.Tensor, logits_fake: tf.Tensor, loss: Loss = non_saturating
    ) -> tf.Tensor:
        """Set the costs of both players. Return the cost that `build_graph` must return.

        Also reports the fractions of real and of generated data that the discriminator classifies
        as real (logits above 0).

        Args:
            logits_real, logits_fake: Outputs of the discriminator for real and generated data.
            loss: Function of `towerpack.gan.losses`.

        Raises:
            LayerError: The loss did not return `Costs`.
        """
        for name, logits in (("real_as_real", logits_real), ("fake_as_real", logits_fake)):
            share = tf.reduce_mean(tf.cast(logits > 0, tf.float32))
            summary.moving_average(f"discriminator/{name}", share)
        costs: Any = loss(logits_real, logits_fake)
        if getattr(costs, "_fields", None) != Costs._fields:
            raise LayerError(
                f"The loss function must return Costs, got {type(costs).__name__}.",
                fix="return towerpack.gan.losses.Costs(generator=…, discriminator=…)",
            )
        return self.set_costs(**costs._asdict())

    def build_began_losses(
        self, error_real: tf.Tensor, error_fake: tf.Tensor, gamma: float = 0.5, rate: float = 0.001
    ) -> tf.Tensor:
        """Set the costs of `losses.began`. Return the cost that `build_graph` must return.

        The variable `began_k` stores the weight `k` and is updated in each training step.

        Args:
            error_real, error_fake, gamma, rate: Same as for `losses.began`.
        """
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
        """Set the cost of each player. Call this outside of any scope.

        The costs are exposed and reported as 'g_loss' and 'd_loss', and their sum as 'gan_loss'.

        Args:
            generator, discriminator: Scalars to minimize.

        Returns:
            The sum, which `build_graph` must return. `build_graph` may add terms such as weight
            decay. Each player minimizes the added terms over its own variables.
        """
        costs: list[Any] = []
        for name, cost in ((G_LOSS, generator), (D_LOSS, discriminator)):
            costs.append(tf.cast(expose(name, cost), tf.float32))
            summary.moving_average(name, costs[-1])
        # The gradient of the returned cost comes only from terms that `build_graph` adds.
        return expose(SUM, tf.stop_gradient(costs[0] + costs[1]))


class RandomZData(RepeatedData):
    """Infinite dataflow of noise, uniform in [-1, 1): `(z float32,)`.

        JoinData([images, RandomZData([64, 100])])  # batches of images and noise

    Contract: infinite; random, depends only on the run's seed and the position; thread- and
    fork-safe; resumable at once.

    Args:
        shape: Shape of each datapoint. Include the batch size to get batches of noise.
        seed: Seed of the noise; None for the run's seed.
    """

    def __init__(self, shape: Sequence[int], *, seed: int | None = None) -> None:
        super().__init__(FakeData([shape], size=1 << 20, domain=(-1.0, 1.0), seed=seed))
