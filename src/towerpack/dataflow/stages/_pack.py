from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import DataFlowError
from towerpack.dataflow._compile import Wrapper
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._iteration_state import State, Stream, inner_state
from towerpack.dataflow._plan import gather, untraced
from towerpack.dataflow._stacking import pad_value
from towerpack.dataflow.arguments import check_choice, integer_of
from towerpack.dataflow.datapoints import (
    Datapoint,
    array_of,
    describe_datapoint,
    is_datapoint,
    keys_of,
    values_of,
)
from towerpack.dataflow.pipeline_names import Length
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._base import WindowStream

Long = Literal["error", "split"]
Piece = tuple[int, int, int]
"""Index of a sequence in its window, first token, and number of tokens."""

_ADDED = ("segment_ids", "positions")


class PackSequences(Wrapper):
    """Pack token sequences into rows of one length, which need little padding.

    Every component of a datapoint is a sequence of integers, and all of them have the same length:
    tokens, and for example labels. A row has the components of its sequences, joined and padded,
    and two more: the number of the segment of each token (from 1, and 0 for padding), and its
    position in the segment (from 0). These follow at the end of a tuple or list. In a dict, they
    are "segment_ids" and "positions". Pass them to `MultiHeadAttention` and `PositionalEncoding`.

    The sequences of a window are put into the first row with enough room, the longest ones first
    (first-fit decreasing, Johnson 1973). Rows are in the order of their earliest sequences. Empty
    sequences are left out. The length is unknown. A resume reads at most one window again.

    Args:
        ds: Flow of tuples, lists or dicts.
        length: Number of tokens in a row.
        window: Number of sequences that are packed together.
        long: What to do with sequences of more than `length` tokens: raise an "error", or "split"
            them into segments, whose positions begin at 0 again.
        pad: Padding value, or a dict of values by component.

    Raises:
        ConfigError: An argument is invalid.
        DataFlowError: A datapoint is not made of such sequences, or too long; raised while
            iterating.
    """

    def __init__(
        self,
        ds: DataFlow,
        length: int,
        *,
        window: int = 1000,
        long: Long = "error",
        pad: int | Mapping[Hashable, int] = 0,
    ) -> None:
        super().__init__(ds)
        check_choice(long, "long", get_args(Long))
        self.row_length = integer_of(length, "length", 1)
        self.window = integer_of(window, "window", 1)
        self.long: Long = long
        self.pad = pad

    def length(self) -> Length:
        return None

    def arguments(self) -> str:
        return f"{self.row_length}, window={self.window}"

    def identity(self) -> str:
        return f"{self.arguments()}, {self.long}"

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        inner = self.ds.open_in(context.retained_in_order(), epoch, inner_state(state))
        return WindowStream(inner, self.window, self._pack, state, context.tally)

    def _pack(self, window: int, datapoints: list[Datapoint]) -> list[Datapoint]:
        first = window * self.window
        sequences = self._checked([*map(untraced, datapoints)], first)
        packed: list[Datapoint] = []
        for row in self._rows([len(next(iter(each.values()))) for each in sequences]):
            numbers = [first + i for i, _, _ in row]
            collate = partial(self._row, sequences, row)
            packed.append(gather(collate, [datapoints[i] for i, _, _ in row], numbers))
        return packed

    def _rows(self, sizes: list[int]) -> list[list[Piece]]:
        """Return the pieces of sequences of these sizes that each row consists of."""
        length = self.row_length
        pieces = [
            (i, start, min(length, size - start))
            for i, size in enumerate(sizes)
            for start in range(0, size, length)
        ]
        return [[pieces[p] for p in row] for row in first_fit([n for _, _, n in pieces], length)]

    def _row(
        self, sequences: list[dict[Hashable, NDArray[Any]]], row: list[Piece], like: list[Datapoint]
    ) -> Datapoint:
        joined: dict[Hashable, NDArray[Any]] = {}
        for key in sequences[0]:
            parts = [sequences[i][key][start : start + size] for i, start, size in row]
            joined[key] = self._padded(np.concatenate(parts), pad_value(self.pad, key) or 0)
        sizes = [size for _, _, size in row]
        ids = np.repeat(np.arange(1, len(sizes) + 1, dtype=np.int32), sizes)
        positions = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
        added = [self._padded(ids, 0), self._padded(positions, 0)]
        if isinstance(like[0], dict):
            return {**joined, **dict(zip(_ADDED, added, strict=True))}
        values = [*joined.values(), *added]
        return values if isinstance(like[0], list) else tuple(values)

    def _padded(self, tokens: NDArray[Any], pad: float) -> NDArray[Any]:
        row = np.full(self.row_length, pad, tokens.dtype)
        row[: len(tokens)] = tokens
        return row

    def _checked(
        self, datapoints: list[Datapoint], first: int
    ) -> list[dict[Hashable, NDArray[Any]]]:
        """Return the sequences of each datapoint of a window by key."""
        keys = self.pad if isinstance(self.pad, Mapping) else ()
        keys = {*keys, *(keys_of(datapoints[0]) if is_datapoint(datapoints[0]) else ())}
        return [self._sequences(dp, number, keys) for number, dp in enumerate(datapoints, first)]

    def _sequences(
        self, datapoint: Datapoint, number: int, keys: set[Hashable]
    ) -> dict[Hashable, NDArray[Any]]:
        sequences: dict[Hashable, NDArray[Any]] = {}
        if is_datapoint(datapoint):
            pairs = zip(keys_of(datapoint), values_of(datapoint), strict=True)
            with suppress(ValueError):  # nested lists of different lengths
                sequences = {key: array_of(value, f"component {key!r}") for key, value in pairs}
        arrays = sequences.values()
        proper = all(a.ndim == 1 and (a.dtype.kind in "iub" or not a.size) for a in arrays)
        if not proper or len({len(a) for a in arrays}) != 1 or sequences.keys() != keys - {*_ADDED}:
            raise DataFlowError(
                f"Datapoint {number} must be made of sequences of integers of the same length.",
                got=describe_datapoint(datapoint),
                expected=f"vectors {sorted(map(repr, keys - {*_ADDED}))}, as in pad= and the first "
                "datapoint of the window, in a tuple, list or dict",
                fix="put a single sequence into a tuple: (tokens,); remove other components with "
                "SelectComponent or MapData",
            )
        size = len(next(iter(arrays)))
        if size > self.row_length and self.long == "error":
            raise DataFlowError(
                f"Datapoint {number} has {size} tokens, but rows have {self.row_length}.",
                fix='pass long="split", or cut or drop long sequences with MapData or FilterData',
            )
        return sequences


def first_fit(lengths: list[int], room: int) -> list[list[int]]:
    """Return the indices of the pieces of each row, packed by first-fit decreasing."""
    rows: list[list[int]] = [[] for _ in lengths]
    rooms = np.full(len(lengths), room)
    for piece in sorted(range(len(lengths)), key=lambda piece: -lengths[piece]):
        row = int(np.argmax(rooms >= lengths[piece]))
        rooms[row] -= lengths[piece]
        rows[row].append(piece)
    return sorted(sorted(row) for row in rows if row)
