from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence, Sized
from contextvars import ContextVar
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arena import Allocate
from towerpack.dataflow._compile import Stage
from towerpack.dataflow._flow import check_seed
from towerpack.dataflow._plan import Node
from towerpack.dataflow._user_code import IndexNode, is_in_towerpack
from towerpack.dataflow.arguments import repr_of
from towerpack.dataflow.content import content_of_values
from towerpack.dataflow.datapoints import (
    Block,
    Columns,
    Datapoint,
    Positions,
    array_of,
    as_ints,
    duplicate,
    keys_of,
    name_of,
    rebuild,
    values_of,
)
from towerpack.dataflow.pipeline_names import Length
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._shuffle import ShuffleNode

_CHUNK = 256
_CHUNK_BYTES = 1 << 20
Array = NDArray[Any]
N = TypeVar("N", bound=Node)


class Sender(ABC):
    """Converter of in-memory data to a form for other processes, used while a job is pickled."""

    @abstractmethod
    def shared(self, array: Array) -> Array:
        """Return an equal array in memory that all processes share."""

    @abstractmethod
    def flat(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return an equal sequence that consists of few objects."""


SENDER: ContextVar[Sender | None] = ContextVar("towerpack_dataflow_sender", default=None)


class HeldArrays:
    """Arrays of a source. Pickling for workers moves the arrays to shared memory."""

    def __init__(self, data: Datapoint) -> None:
        self.data = data
        self.arrays: list[Array] = values_of(data)

    def __getstate__(self) -> Datapoint:
        sender = SENDER.get()
        if sender is not None:
            self.arrays = [sender.shared(array) for array in self.arrays]
            self.data = rebuild(self.data, self.arrays)
        return self.data

    def __setstate__(self, data: Datapoint) -> None:
        self.__init__(data)


def items_of(source: Stage) -> Node | None:
    """Return a node that calls `__getitem__` of a source, if a user-defined class overrides it."""
    owner = next((cls for cls in type(source).__mro__ if "__getitem__" in vars(cls)), Stage)
    return None if is_in_towerpack(owner) else IndexNode(source)


class OrderedSource(Stage):
    def __init__(self, *, shuffle: bool, seed: int | None) -> None:
        self.shuffle = shuffle
        self.seed = check_seed(seed)
        self.random = shuffle and seed is None

    @abstractmethod
    def in_order(self) -> Node: ...

    def identity(self) -> str:
        return f"{self.length()}, shuffled" if self.shuffle else str(self.length())

    def content(self) -> str:
        return super().content() + (", shuffled" if self.shuffle else "")

    def compile(self, context: StageContext) -> Node | None:
        node = items_of(self) or self.in_order()
        return ShuffleNode(node, context.key(self, self.seed)) if self.shuffle else node


class PlannedSource(OrderedSource, Generic[N]):
    def __init__(self, node: N, *, shuffle: bool, seed: int | None) -> None:
        super().__init__(shuffle=shuffle, seed=seed)
        self._node = node

    def in_order(self) -> Node:
        return self._node

    def length(self) -> Length:
        return self._node.size


class DataFromArrays(Stage):
    """Yield the rows of arrays. Datapoint i consists of row i of each array.

    `DataFromArrays(images, labels)` yields tuples, `DataFromArrays([images, labels])` lists and
    `DataFromArrays({"image": images, "label": labels})` dicts. The arrays are not copied, so they
    may be memory maps and must not change while in use. The yielded rows are copies. With
    `ShuffleData`, `BatchData` and vectorized maps, no Python code runs per datapoint.

    For worker processes, arrays are moved to shared memory unless they are mapped from a file. Drop
    your own references to them to save memory.

    Args:
        arrays: Arrays of shape [datapoints, ...], or values that can be converted to arrays.

    Raises:
        ConfigError: There are no arrays, they differ in length, or one has no first axis.
    """

    def __init__(self, *arrays: ArrayLike | Sequence[ArrayLike] | Mapping[Any, ArrayLike]) -> None:
        data: Datapoint = arrays
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            data = dict(cast("Mapping[Hashable, Any]", arrays[0]))
        elif len(arrays) == 1 and isinstance(arrays[0], (list, tuple)):
            data = cast("Datapoint", arrays[0])
        self._held = HeldArrays(rebuild(data, [array_of(a, "An array") for a in values_of(data)]))
        shapes = {name_of(k): a.shape for k, a in zip(keys_of(data), self.arrays, strict=True)}
        if () in shapes.values() or len({shape[:1] for shape in shapes.values()}) != 1:
            raise ConfigError(
                "DataFromArrays needs one or more arrays with the same number of rows.",
                got=", ".join(f"{name}: shape {list(shape)}" for name, shape in shapes.items()),
            )
        self._size = len(self.arrays[0])

    @property
    def arrays(self) -> list[NDArray[Any]]:
        return self._held.arrays

    def __getitem__(self, index: int) -> Datapoint:
        return duplicate(rebuild(self._held.data, [array[index] for array in self.arrays]))

    def length(self) -> Length:
        return self._size

    def content(self) -> str:
        return f"{super().content()}, {content_of_values(self._held.data)}"

    def compile(self, context: StageContext) -> Node | None:
        return items_of(self) or ArraysNode(self._held, self._size)


class ArraysNode(Node):
    def __init__(self, data: HeldArrays | Datapoint, size: int) -> None:
        self.held = data if isinstance(data, HeldArrays) else HeldArrays(data)
        self.size = size
        self.allocate: Allocate = np.empty
        # `take` is faster than indexing, but first copies an array that is not contiguous.
        self._can_take = all(array.flags.c_contiguous for array in self.held.arrays)
        row_bytes = sum(array.nbytes // max(1, size) for array in self.held.arrays)
        self.chunk = max(1, min(_CHUNK, _CHUNK_BYTES // max(1, row_bytes)))

    @property
    def releases_gil(self) -> bool:
        return not any(array.dtype.hasobject for array in self.held.arrays)

    def read(self, epoch: int, positions: Positions) -> Block:
        arrays = self.held.arrays
        if isinstance(positions, range):
            rows = slice(positions.start, positions.stop)
            columns = [self._copy(array[rows]) for array in arrays]
        elif self._can_take:
            columns = [self._take(array, positions) for array in arrays]
        else:
            columns = [array[positions] for array in arrays]
        like = self.held.data
        data = tuple(columns) if type(like) is tuple else rebuild(like, columns)
        return Columns(data, len(positions))

    def lay_into(self, allocate: Allocate) -> None:
        self.allocate = allocate

    def _copy(self, rows: NDArray[Any]) -> NDArray[Any]:
        out = self.allocate(rows.shape, rows.dtype)
        out[...] = rows
        return out

    def _take(self, array: NDArray[Any], positions: NDArray[np.int64]) -> NDArray[Any]:
        if self.allocate is np.empty:
            return array.take(positions, axis=0)
        out = self.allocate((len(positions), *array.shape[1:]), array.dtype)
        # Positions are in range. With mode="raise", `take` would fill and copy a buffer.
        return array.take(positions, axis=0, out=out, mode="clip")


class DataFromList(OrderedSource):
    """Yield the elements of a list, without copying them. Do not change them in place.

    Args:
        lst: Any sequence of datapoints. It must not change while in use.
        shuffle: Whether to shuffle each pass, as `ShuffleData` does.
        seed: Seed of the shuffle only; by default the run's seed.

    Raises:
        ConfigError: `lst` is not a sequence.
    """

    def __init__(
        self, lst: Sequence[Any], shuffle: bool = False, *, seed: int | None = None
    ) -> None:
        super().__init__(shuffle=shuffle, seed=seed)
        indexable = isinstance(cast("object", lst), Sized) and hasattr(lst, "__getitem__")
        if not indexable or isinstance(lst, (Mapping, str, bytes)):
            raise ConfigError(
                f"DataFromList needs a list, got {repr_of(lst)}.",
                fix="pass list(...), or use DataFromIterable, or DataFromArrays for arrays",
            )
        self.lst = lst

    def __getitem__(self, index: int) -> Datapoint:
        return self.lst[index]

    def length(self) -> Length:
        return len(self.lst)

    def content(self) -> str:
        return f"{super().content()}, {content_of_values(self.lst)}"

    def in_order(self) -> Node:
        return ListNode(self.lst)


class ListNode(IndexNode):
    def read(self, epoch: int, positions: Positions) -> Block:
        lst = self._source
        try:
            return [lst[position] for position in as_ints(positions)]
        except Exception:  # noqa: BLE001  `get` raises an error that names the position
            return [self.get(epoch, position) for position in as_ints(positions)]

    def name_of(self, index: int) -> str | None:
        """Return the first component if it is a text, such as the path of a file."""
        row: Any = self._source[index]
        first: Any = row[0] if type(row) in (list, tuple) and row else row
        return os.fspath(first) if isinstance(first, (str, os.PathLike)) else None

    def __getstate__(self) -> dict[str, Any]:
        sender = SENDER.get()
        items = self._source if sender is None else sender.flat(cast("Sequence[Any]", self._source))
        return {**self.__dict__, "_source": items}
