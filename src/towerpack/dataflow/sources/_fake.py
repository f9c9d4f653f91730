from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._compile import Stage
from towerpack.dataflow._flow import check_seed
from towerpack.dataflow._item_rng import position_rng
from towerpack.dataflow._plan import Node
from towerpack.dataflow.arguments import integer_of, repr_of
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.pipeline_names import Length
from towerpack.dataflow.stage_context import StageContext

Domain = tuple[float, float]


class FakeData(Stage):
    """Generate tuples of arrays of uniformly distributed random numbers.

    Args:
        shapes: Shape of each component; `[]` is a scalar.
        size: Number of datapoints in a pass.
        random: Whether to draw new numbers for every datapoint. Otherwise all are equal.
        dtype: Data type of all components, or one for each.
        domain: Interval `(low, high)` of all components, or one for each; `high` is excluded. For
            bool, both values are equally likely.
        seed: Seed of these numbers only; by default the run's seed.

    Raises:
        ConfigError: An argument is invalid, or numbers of shapes, dtypes and domains differ.
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
        self.size = integer_of(size, "size", 0)
        self.repeats_first = not random
        self.random = seed is None
        self.seed = check_seed(seed)
        try:
            sides = [tuple(shape) for shape in shapes]
            each: Any = dtype if isinstance(dtype, (list, tuple)) else [dtype] * len(sides)
            self.dtypes = [np.dtype(kind) for kind, _ in zip(each, sides, strict=True)]
            pairs = np.asarray(domain, np.float64).reshape(-1, 2)
            bounds = np.broadcast_to(pairs, (len(sides), 2))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                "FakeData needs one shape, one dtype and one domain for each component.",
                got=f"shapes {repr_of(shapes)}, dtypes {repr_of(dtype)}, domains {repr_of(domain)}",
                expected='for example shapes=[[28, 28], []], dtype="float32" and domain=(0, 1)',
            ) from error
        self.shapes = [tuple(integer_of(n, "a side of a shape", 0) for n in side) for side in sides]
        self.domains = [(low, high) for low, high in bounds.tolist()]

    def length(self) -> Length:
        return self.size

    def content(self) -> str:
        drawn = f"{self.shapes}, {self.dtypes}, {self.domains}, {self.repeats_first}"
        return f"{super().content()}, {drawn}"

    def compile(self, context: StageContext) -> Node | None:
        components = list(zip(self.shapes, self.dtypes, self.domains, strict=True))
        return FakeNode(self.size, components, self.repeats_first, context.key(self, self.seed))


@dataclass(eq=False)
class FakeNode(Node):
    size: int | None
    components: list[tuple[tuple[int, ...], np.dtype[Any], Domain]]
    repeats_first: bool
    key: int

    def get(self, epoch: int, position: int) -> Datapoint:
        rng = position_rng(self.key, *((0, 0) if self.repeats_first else (epoch, position)))
        return tuple(_draw(rng, *component) for component in self.components)


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
