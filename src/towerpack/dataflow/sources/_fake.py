"""Made-up data, for tests of speed and shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arguments import given, integer_of
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import Length, Place, Stage, check_seed
from towerpack.dataflow._plan import Node
from towerpack.dataflow._randomness import position_rng

Domain = tuple[float, float]


class FakeData(Stage):
    """Tuples of arrays with given shapes, uniform in a domain.

    Contract: in order; `size` long; random unless `random=False`; thread- and fork-safe; resumable
    at once.

    Args:
        shapes: One for each component; `[]` is a scalar.
        size: Datapoints in a pass.
        random: New numbers for every datapoint, or the first one again and again.
        dtype: Of all components, or one for each.
        domain: `(low, high)` of all components, or one for each; `low <= value < high`. For bool,
            true and false are equally likely.
        seed: For these numbers alone; by default the run's.
    """

    def __init__(
        self,
        shapes: Sequence[Sequence[int]],
        size: int = 1000,
        random: bool = True,
        dtype: DTypeLike | Sequence[DTypeLike] = "float32",
        domain: Domain | Sequence[Domain] = (0, 1),
        *,
        seed: int | None = None,
    ) -> None:
        self.shapes = _checked_shapes(shapes)
        self.size = integer_of(size, "size", 0)
        self.repeats_first = not random
        self.random = seed is None
        self.seed = check_seed(seed)
        count = len(self.shapes)
        dtypes: list[Any] = list(dtype) if isinstance(dtype, (list, tuple)) else [dtype] * count
        try:
            self.dtypes = [np.dtype(one) for one in dtypes]
            bounds = np.asarray(domain, np.float64)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                "NumPy knows no such dtype, or domain is no pair.",
                got=f"{given(dtype)}, {given(domain)}",
                expected='for example "float32" and (0, 1)',
            ) from error
        if bounds.ndim == 1:
            bounds = np.tile(bounds, (count, 1))
        if len(self.dtypes) != count or bounds.shape != (count, 2):
            raise ConfigError(
                "There must be one dtype and one domain for each shape.",
                got=f"{count} shapes, {len(self.dtypes)} dtypes, domains {given(domain)}",
            )
        self.domains = [(low, high) for low, high in bounds.tolist()]

    def length(self) -> Length:
        return self.size

    def identity(self) -> str:
        return str(self.size)

    def content(self) -> str:
        drawn = f"{self.shapes}, {self.dtypes}, {self.domains}, {self.repeats_first}"
        return f"{super().content()}, {drawn}"

    def compile(self, place: Place) -> Node | None:
        return FakeNode(self, place.key(self, self.seed))


def _checked_shapes(shapes: Any) -> list[tuple[int, ...]]:
    try:
        return [tuple(integer_of(side, "a side of a shape", 0) for side in one) for one in shapes]
    except TypeError as error:
        raise ConfigError(
            "shapes must be a list with one shape for each component.",
            got=given(shapes),
            expected="for example [[28, 28], []], an image and a scalar",
        ) from error


class FakeNode(Node):
    """Draws datapoints by position."""

    def __init__(self, flow: FakeData, key: int) -> None:
        self.size = flow.size
        self._components = list(zip(flow.shapes, flow.dtypes, flow.domains, strict=True))
        self._repeats_first = flow.repeats_first
        self._key = key

    def get(self, epoch: int, position: int) -> Datapoint:
        where = (0, 0) if self._repeats_first else (epoch, position)
        rng = position_rng(self._key, *where)
        return tuple(_draw(rng, *component) for component in self._components)


def _draw(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any], domain: Domain
) -> NDArray[Any]:
    low, high = domain
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape, np.uint8)).astype(dtype)
    if dtype.kind in "iu":
        return np.asarray(rng.integers(int(low), max(int(high), int(low) + 1), shape, dtype.type))
    exact = np.float64 if dtype.itemsize > 4 else np.float32
    unit = np.asarray(rng.random(shape, exact))
    return (unit * exact(high - low) + exact(low)).astype(dtype, copy=False)
