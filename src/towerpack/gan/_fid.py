"""Fréchet distance between real and generated data, over features that a network gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from towerpack._core.errors import CallbackError, ConfigError
from towerpack.callbacks import Callback
from towerpack.dataflow import DataFlow
from towerpack.gan._samples import fed, seeded


def frechet_distance(features_a: np.ndarray, features_b: np.ndarray) -> float:
    """Squared Fréchet distance of two normal distributions, fitted to features.

    Heusel et al. 2017, section 3: ‖μ_a - μ_b‖² + tr(Σ_a + Σ_b - 2 (Σ_a Σ_b)^½).

    Args:
        features_a: [n, features].
        features_b: [m, features].

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
    """Monitors the Fréchet distance between real images and generated ones.

    With Inception-v3 over 50,000 images it is the FID of papers; with any other network it compares
    runs with the same one.

    Args:
        real: Finite; its datapoints are batches of images, or begin with one.
        network: A batch of images (arrays, as the flow and the generator give them) to features
            [batch, features]: a `Predictor`, for example.
        output: Name of the generator's output.
        flow: What the generator is fed, as for `SampleGrid`: always the same datapoints.
        size: Generated images to compare. The flow may be infinite.
        name: Of the monitored number.
        ema: Take the averages of `WeightEMA` for the weights.
    """

    def __init__(
        self,
        real: DataFlow,
        network: Callable[[Any], Any],
        output: str,
        flow: DataFlow,
        *,
        size: int = 10_000,
        name: str = "fid",
        ema: bool = False,
    ) -> None:
        self.real, self.network, self.output, self.flow = real, network, output, flow
        self.size, self.name, self.ema = size, name, ema
        self._real_features: np.ndarray | None = None

    def produces(self) -> Sequence[str]:
        """The distance."""
        return [self.name]

    def before_train(self) -> None:
        """Cut the tower to the generator."""
        self._function, self._inputs = self.trainer.predict_function([self.output], ema=self.ema)

    def trigger(self) -> None:
        """Compare.

        Raises:
            CallbackError: The generator's flow ended before `size` images.
        """
        if self._real_features is None:
            self._real_features = self._features(self.real, lambda batch: batch)
        made = self._features(self.flow, self._generate, self.size)
        if len(made) < self.size:
            raise CallbackError(
                f"{self!r}: the flow ended after {len(made)} of {self.size} images.",
                fix=f"RandomZData, which has no end, or size={len(made)}",
            )
        distance = frechet_distance(self._real_features, made)
        self.trainer.monitors.put_scalar(self.name, distance)

    def _generate(self, datapoint: Any) -> list[np.ndarray]:
        return [np.asarray(i) for i in self._function(*fed(self, datapoint, self._inputs))]

    def _features(
        self, flow: Iterable[Any], images: Callable[[Any], Any], size: int | None = None
    ) -> np.ndarray:
        found: list[np.ndarray] = []
        count = 0
        with closing(seeded(flow, self.trainer.seed, self.name)) as batches:
            for batch in batches:
                self.trainer.check_interrupt()
                given = images(batch)
                first = given[0] if isinstance(given, list | tuple) else given
                found.append(np.asarray(self.network(first)))
                count += len(found[-1])
                if size is not None and count >= size:
                    break
        return np.concatenate(found)[:size] if found else np.empty((0, 0))

    def __repr__(self) -> str:
        return f"FID({self.output!r})"
