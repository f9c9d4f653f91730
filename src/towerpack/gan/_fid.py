import math
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.callbacks import Callback
from towerpack.dataflow import DataFlow
from towerpack.dataflow._flow import length_of
from towerpack.gan._samples import fed, seeded


def frechet_distance(features_a: np.ndarray, features_b: np.ndarray) -> float:
    """Return the squared Fréchet distance between two normal distributions fitted to features.

    Heusel et al. 2017, section 3: ‖μ_a - μ_b‖² + tr(Σ_a + Σ_b - 2 (Σ_a Σ_b)^½).

    Args:
        features_a, features_b: Arrays [n, features] with at least two rows each.

    Raises:
        ConfigError: The shapes do not match, or there are fewer than two rows.
    """
    a, b = (np.asarray(features, np.float64) for features in (features_a, features_b))
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise ConfigError(
            "frechet_distance must get features of shape [n, features] and [m, features] with n "
            f"and m at least 2, got {a.shape} and {b.shape}."
        )
    difference = a.mean(0) - b.mean(0)
    cov_a, cov_b = (np.atleast_2d(np.cov(x, rowvar=False)) for x in (a, b))
    # root @ cov_b @ root is symmetric and has the same eigenvalues as cov_a @ cov_b.
    values, vectors = np.linalg.eigh(cov_a)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    products = np.linalg.eigvalsh(root @ cov_b @ root)
    trace = np.trace(cov_a) + np.trace(cov_b) - 2.0 * np.sqrt(np.maximum(products, 0.0)).sum()
    return float(difference @ difference + trace)


class FID(Callback):
    """Callback that reports the Fréchet distance between real and generated images.

    With Inception-v3 and 50,000 images, the result is the FID of the literature. With other
    networks, only compare runs that use the same network.

    Args:
        real: Finite dataflow of batches of images, or of datapoints whose first component is one.
        network: Function from a batch of images to features [batch, features], such as a
            `Predictor`.
        output: Name of the generator's output.
        flow: Finite dataflow of the generator's inputs, the same in each evaluation:
            `FixedSizeData(RandomZData([100, 64]), 100)`.
        name: Name of the reported value.
        ema: Whether to use the averaged weights of `WeightEMA`.

    Raises:
        ConfigError: A dataflow is infinite.
    """

    def __init__(
        self,
        real: DataFlow,
        network: Callable[[Any], Any],
        output: str,
        flow: DataFlow,
        *,
        name: str = "fid",
        ema: bool = False,
    ) -> None:
        if math.inf in (length_of(real), length_of(flow)):
            raise ConfigError(
                "FID needs finite dataflows.", fix="pass FixedSizeData(flow, batches)"
            )
        self.real, self.network, self.output, self.flow = real, network, output, flow
        self.name, self.ema = name, ema
        self._real_features: np.ndarray | None = None

    def produces(self) -> Sequence[str]:
        return [self.name]

    def before_train(self) -> None:
        self.trainer.monitors.directions[self.name] = "min"
        self._function, self._inputs = self.trainer.predict_function([self.output], ema=self.ema)

    def trigger(self) -> None:
        if self._real_features is None:
            self._real_features = self._features(
                self.real, lambda batch: batch[0] if isinstance(batch, list | tuple) else batch
            )
        distance = frechet_distance(self._real_features, self._features(self.flow, self._generate))
        self.trainer.monitors.put_scalar(self.name, distance)

    def _generate(self, datapoint: Any) -> np.ndarray:
        return np.asarray(self._function(*fed(self, datapoint, self._inputs))[0])

    def _features(self, flow: DataFlow, images: Callable[[Any], Any]) -> np.ndarray:
        features: list[np.ndarray] = []
        with closing(seeded(flow, self.trainer.seed, self.name)) as batches:
            for batch in batches:
                self.trainer.check_interrupt()
                features.append(np.asarray(self.network(images(batch))))
        return np.concatenate(features) if features else np.empty((0, 0))
