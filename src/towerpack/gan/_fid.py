"""Fréchet distance between real and generated data, over features that a network gives."""

from __future__ import annotations

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
    """Squared Fréchet distance of two normal distributions, fitted to [n, features] each.

    Heusel et al. 2017, section 3: ‖μ_a - μ_b‖² + tr(Σ_a + Σ_b - 2 (Σ_a Σ_b)^½).

    Raises:
        ConfigError: Fewer than two datapoints on a side, or different numbers of features.
    """
    a, b = (np.asarray(features, np.float64) for features in (features_a, features_b))
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise ConfigError(
            f"frechet_distance cannot compare shapes {a.shape} and {b.shape}.",
            expected="[n, features] and [m, features], n and m at least 2",
        )
    difference = a.mean(0) - b.mean(0)
    cov_a, cov_b = (np.atleast_2d(np.cov(x, rowvar=False)) for x in (a, b))
    # The trace of the root of a product is that of a symmetric matrix with the same eigenvalues.
    values, vectors = np.linalg.eigh(cov_a)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    products = np.linalg.eigvalsh(root @ cov_b @ root)
    trace = np.trace(cov_a) + np.trace(cov_b) - 2.0 * np.sqrt(np.maximum(products, 0.0)).sum()
    return float(difference @ difference + trace)


class FID(Callback):
    """Monitor the Fréchet distance between real images and generated ones.

    With Inception-v3 over 50,000 images it is the FID of papers; with any other network it compares
    runs with the same one.

    Args:
        real: Finite; its datapoints are batches of images, or begin with one.
        network: A batch of images (arrays, as the flow and the generator give them) to features
            [batch, features]: a `Predictor`, for example.
        output: Name of the generator's output.
        flow: Finite; what the generator is fed, always the same:
            `FixedSizeData(RandomZData([100, 64]), 100)`.
        name: Of the monitored number.
        ema: Take the averages of `WeightEMA` for the weights.

    Raises:
        ConfigError: A flow has no end.
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
            raise ConfigError("FID: a flow has no end.", fix="FixedSizeData(flow, batches)")
        self.real, self.network, self.output, self.flow = real, network, output, flow
        self.name, self.ema = name, ema
        self._of_real: np.ndarray | None = None

    def produces(self) -> Sequence[str]:
        return [self.name]

    def before_train(self) -> None:
        self.trainer.monitors.directions[self.name] = "min"
        self._function, self._inputs = self.trainer.predict_function([self.output], ema=self.ema)

    def trigger(self) -> None:
        if self._of_real is None:
            self._of_real = self._features(
                self.real, lambda batch: batch[0] if isinstance(batch, list | tuple) else batch
            )
        made = self._features(self.flow, self._generate)
        self.trainer.monitors.put_scalar(self.name, frechet_distance(self._of_real, made))

    def _generate(self, datapoint: Any) -> np.ndarray:
        return np.asarray(self._function(*fed(self, datapoint, self._inputs))[0])

    def _features(self, flow: DataFlow, images: Callable[[Any], Any]) -> np.ndarray:
        found: list[np.ndarray] = []
        with closing(seeded(flow, self.trainer.seed, self.name)) as batches:
            for batch in batches:
                self.trainer.check_interrupt()
                found.append(np.asarray(self.network(images(batch))))
        return np.concatenate(found) if found else np.empty((0, 0))
