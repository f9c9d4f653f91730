"""The generator's input."""

from __future__ import annotations

from collections.abc import Sequence

from towerpack.dataflow import FakeData, RepeatedData


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
        self.shape = tuple(shape)
