from __future__ import annotations

import zlib
from collections.abc import Hashable
from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from towerpack._core.errors import ConfigError
from towerpack._core.randomness import stream
from towerpack.dataflow._flow import DataFlow, check_seed, length_of, require_plan
from towerpack.dataflow._item_rng import ItemRNG
from towerpack.dataflow._plan import Node, Tracer, rows_in
from towerpack.dataflow.arguments import integer_of, repr_of
from towerpack.dataflow.pipeline_names import Length
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._base import PlannedStage
from towerpack.dataflow.stages._shuffle import PermutedNode

Array = NDArray[np.int64]
Floats = NDArray[np.float64]

_PIECE = 1 << 16


class WeightedData(PlannedStage):
    """Draw datapoints at random, with probabilities in proportion to weights.

    With replacement, every draw is independent of all others. The draws are computed position by
    position from cumulative weights, which take 8 bytes of memory per datapoint of `ds`. Worker
    processes share them.

    Without replacement, each draw is in proportion to the weights of the datapoints that are left
    (Efraimidis & Spirakis 2006). Each process that reads a pass computes its order, which takes 16
    bytes per datapoint of `ds`, and then 8 bytes per draw.

    Put random maps above this stage. Below it, they draw the same numbers whenever a datapoint is
    repeated.

    Args:
        ds: Finite flow over an indexable source, in the same order in each pass.
        weights: Weight of each datapoint of `ds`, of shape [len(ds)]. A weight of 0 excludes the
            datapoint. "balanced" draws all classes equally often.
        replacement: Whether a pass may contain a datapoint several times.
        labels: Classes for "balanced": an array of shape [len(ds)], or the index or key of the
            component with the class, which is read from `ds` once, when the flow is created.
        size: Number of draws in a pass. By default `len(ds)`, or without replacement the number of
            weights above 0.
        seed: Seed of these draws only; by default the run's seed.

    Raises:
        ConfigError: Weights or labels do not fit `ds`, `size` is too large, or `ds` is infinite,
            can only be read in order, or has another order in each pass.
    """

    structural = True

    def __init__(
        self,
        ds: DataFlow,
        weights: ArrayLike | Literal["balanced"],
        replacement: bool = True,
        *,
        labels: Hashable | ArrayLike = None,
        size: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(ds)
        self.replacement = replacement
        self.seed = check_seed(seed)
        self.random = seed is None
        _check_order(ds)
        shares = _shares(weights, labels, ds)
        positive = int(np.count_nonzero(shares))
        default = len(shares) if replacement else positive
        self.size = default if size is None else integer_of(size, "size", 1)
        if not replacement and self.size > positive:
            raise ConfigError(
                f"size= is {self.size}, but only {positive} weights are above 0.",
                fix=f"pass size={positive} or less, or set replacement=True",
            )
        self._table = np.cumsum(shares, out=shares) if replacement else shares
        self._checksum = zlib.crc32(cast("Any", self._table))

    def resized(self, size: int) -> int:
        return self.size

    def length(self) -> Length:
        return self.size

    def arguments(self) -> str:
        return f"{self.size}" if self.replacement else f"{self.size}, replacement=False"

    def identity(self) -> str:
        return f"{self.arguments()}, {self._checksum:08x}"

    def compile(self, context: StageContext) -> Node | None:
        # Workers below cannot read ahead, so do not start them.
        return super().compile(replace(context, serial=True))

    def node(self, inner: Node, context: StageContext) -> Node:
        make = DrawNode if self.replacement else RaceNode
        return make(inner, context.key(self, self.seed), self._table, self.size)


class DrawNode(PermutedNode):
    """Node that reads another node at independent random positions, by cumulative weights."""

    def __init__(self, inner: Node, key: int, cumulative: Floats, size: int) -> None:
        super().__init__(inner, key, _PIECE)
        self.size = size
        self._cumulative = cumulative

    def scattered(self, epoch: int, positions: Array) -> Array:
        points = ItemRNG(self.key, epoch, positions).random() * self._cumulative[-1]
        # Points are below the total. A weight of 0 has no points on its right side.
        return cast("Array", np.searchsorted(self._cumulative, points, side="right"))


class RaceNode(PermutedNode):
    """Node that reads another node in the order of exponential variates with rates `shares`."""

    def __init__(self, inner: Node, key: int, shares: Floats, size: int) -> None:
        super().__init__(inner, key, max(1, size))  # one block
        self.size = size
        self._shares = shares

    def permuted(self, epoch: int, block: int, start: int, stop: int) -> Array:
        # Unlike `-np.log`, these variates rarely depend on the machine's mathematical library.
        times = stream(self.key, epoch).standard_exponential(len(self._shares))
        with np.errstate(all="ignore"):
            times /= self._shares
        np.minimum(times, np.finfo(np.float64).max, out=times)
        times[self._shares == 0] = np.inf
        return np.argsort(times, kind="stable")[:stop].copy()


def _check_order(ds: DataFlow) -> None:
    if not isinstance(length_of(ds), int):
        raise ConfigError(
            f"WeightedData must wrap a finite flow of known length, got {ds}.",
            fix="put RepeatedData above WeightedData",
        )
    node = require_plan(ds, StageContext(0, serial=True), "WeightedData needs random access")
    rows, some = Tracer(node).root, range(min(node.size or 0, _PIECE))
    first, second = (rows_in(rows.read(epoch, some))[:, 0] for epoch in (0, 1))
    if not np.array_equal(first, second):
        raise ConfigError(
            f"Each pass over {ds} has another order, so that weights would belong to other rows.",
            fix="put ShuffleData and other random orders above WeightedData",
        )


def _shares(weights: Any, labels: Any, ds: DataFlow) -> Floats:
    """Return the weights, divided by the largest one."""
    balanced = isinstance(weights, str) and weights == "balanced"
    if balanced != (labels is not None):
        raise ConfigError(
            'labels= and weights="balanced" require each other.',
            fix="pass both, with an array of labels, or the index or key of their component",
        )
    if isinstance(labels, (int, str)):
        with ds.iterate(seed=0, epoch=0) as rows:
            labels = [row[labels] for row in rows]
    if balanced:
        _, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
        weights = (1.0 / counts)[which]
    try:
        numbers = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        numbers = np.zeros(0)
    if numbers.shape != (len(ds),):
        raise ConfigError(
            f'weights must be "balanced" or one number for each of {len(ds)} datapoints.',
            got=repr_of(labels if balanced else weights),
            fix=f"pass an array of shape [{len(ds)}], in the order of the flow",
        )
    wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
    if len(wrong) or not numbers.any():
        raise ConfigError(
            "weights must be finite numbers of at least 0, and not all 0.",
            got=f"weight {wrong[0]} is {numbers[wrong[0]]}" if len(wrong) else "only zeros",
            fix="replace NaN and negative weights, or pass 0 to exclude a datapoint",
        )
    return numbers / numbers.max()
