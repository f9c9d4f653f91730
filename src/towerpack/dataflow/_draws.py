"""Random numbers for datapoints: one generator for one datapoint, or one draw for each of many.

Both are pure functions of (key, epoch, position), so a datapoint gets the same numbers whether it
is read alone, within a block of any size, by any worker, or again after a resume.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack._core.randomness import derive_seed
from towerpack.dataflow._permute import U64, mix, mix_int

_MASK = (1 << 64) - 1
_STRIDE = np.uint64(0x9E3779B97F4A7C15)


def position_rng(key: int, epoch: int, position: int) -> np.random.Generator:
    """The generator of one datapoint: Philox, keyed by stage and epoch, counting from position."""
    philox = np.random.Philox(
        key=np.array((key, epoch & _MASK), np.uint64),
        counter=np.array((0, position, 0, 0), np.uint64),
    )
    return np.random.Generator(philox)


class ItemRNG:
    """Draws random numbers for a block of datapoints: each call gives every one its own.

    What a datapoint gets depends on its position and on which call it is (the first, the second
    ...), never on the block it is read in. So a vectorised map must make the same calls for every
    block: no `if` on the data around a draw.

    Args:
        key: Names the stage.
        epoch: The pass.
        positions: Of the datapoints in the block.
    """

    def __init__(self, key: int, epoch: int, positions: NDArray[np.int64]) -> None:
        self._key = derive_seed(key, "items", epoch)
        self._positions = mix(positions.astype(np.uint64) * _STRIDE + np.uint64(mix_int(self._key)))
        self._calls = 0

    def __len__(self) -> int:
        return len(self._positions)

    def random(self, size: int | tuple[int, ...] = ()) -> NDArray[np.float64]:
        """Uniform in [0, 1), of shape [datapoints, *size]."""
        return (self._words(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def uniform(
        self, low: float = 0.0, high: float = 1.0, size: int | tuple[int, ...] = ()
    ) -> NDArray[np.float64]:
        """Uniform in [low, high), of shape [datapoints, *size]."""
        return low + (high - low) * self.random(size)

    def integers(self, low: int, high: int, size: int | tuple[int, ...] = ()) -> NDArray[np.int64]:
        """Integers in low..high-1, of shape [datapoints, *size].

        Raises:
            ConfigError: The range is empty or has more than 2**32 values.
        """
        if not 0 < high - low <= 1 << 32:
            raise ConfigError(
                f"integers({low}, {high}) has {high - low} values to choose from.",
                expected="1 to 2**32 values: low <= drawn < high",
            )
        words = (self._words(size) >> np.uint64(32)) * np.uint64(high - low)
        return (words >> np.uint64(32)).astype(np.int64) + low

    def normal(
        self, loc: float = 0.0, scale: float = 1.0, size: int | tuple[int, ...] = ()
    ) -> NDArray[np.float64]:
        """Normal numbers of shape [datapoints, *size] (Box & Muller 1958)."""
        radius = np.sqrt(-2.0 * np.log1p(-self.random(size)))
        return loc + scale * radius * np.cos(2.0 * math.pi * self.random(size))

    def _words(self, size: int | tuple[int, ...]) -> U64:
        shape = (size,) if isinstance(size, int) else size
        self._calls += 1
        words = mix(self._positions ^ np.uint64(mix_int(self._key + self._calls)))
        if not shape:
            return words
        lanes = np.arange(math.prod(shape), dtype=np.uint64) * _STRIDE
        return mix(words[:, None] + lanes).reshape(-1, *shape)
