from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require
from towerpack.dataflow._plan import Node
from towerpack.dataflow._user_files import PathLike, check_expansion, file_of, reading
from towerpack.dataflow.arguments import integer_of
from towerpack.dataflow.content import content_of_files
from towerpack.dataflow.datapoints import Block, Columns, Positions, as_array
from towerpack.dataflow.sources._memory import PlannedSource

_CHUNK_BYTES = 1 << 20


class SVMLightData(PlannedSource["SparseNode"]):
    """Source of an SVMLight file: datapoint i is `[features, label]` of line i.

    scikit-learn parses the file at once. Features are stored as a sparse matrix in memory and
    become dense rows when they are read. Thread- and fork-safe; resumes at once.

    Args:
        path: The file. Names that end in `.gz` or `.bz2` are decompressed.
        shuffle: Shuffle every pass differently, as `ShuffleData` does.
        num_features: Length of the rows (default: the largest index in the file). Set it if the
            last features may be missing in a file, such as a test set.
        dtype: Dtype of the features. Labels are float64.
        seed: Seed of the shuffle (default: the seed of the run).

    Attributes:
        num_features: Length of the rows.

    Raises:
        ConfigError: The file does not exist, or has more features than `num_features`.
        FormatError: The file is damaged.
    """

    def __init__(
        self,
        path: PathLike,
        shuffle: bool = True,
        *,
        num_features: int | None = None,
        dtype: DTypeLike = np.float32,
        seed: int | None = None,
    ) -> None:
        self.path = file_of(path)
        if num_features is not None:
            integer_of(num_features, "num_features", least=0)
        node = SparseNode(self.path, num_features, np.dtype(dtype))
        super().__init__(node, shuffle=shuffle, seed=seed)
        self.num_features = node.num_features

    def content(self) -> str:
        dtype, files = self._node.dtype, content_of_files([self.path])
        return f"{super().content()}, {self.num_features}, {dtype}, {files}"

    def arguments(self) -> str:
        return self.path.name


class SparseNode(Node):
    def __init__(self, path: Path, num_features: int | None, dtype: np.dtype[Any]) -> None:
        datasets: Any = require("sklearn.datasets", extra="formats", needed_for="SVMLightData")
        with reading(path, "an SVMLight file"):
            loaded = datasets.load_svmlight_file(str(path), dtype=dtype, zero_based="auto")
        self._sparse, self._labels = loaded
        columns = int(self._sparse.shape[1])
        if num_features is None:
            row_bytes = columns * dtype.itemsize
            check_expansion(row_bytes, path.stat().st_size, "the largest index", path)
        elif columns > num_features:
            what = f"{path} must have at most num_features={num_features}, but has {columns}."
            raise ConfigError(what)
        self.num_features = columns if num_features is None else num_features
        self.dtype = dtype
        self.size = len(self._labels)
        self._sparse.resize(self.size, self.num_features)
        self.chunk = max(1, min(256, _CHUNK_BYTES // max(1, self.num_features * dtype.itemsize)))

    def read(self, epoch: int, positions: Positions) -> Block:
        rows = as_array(positions)
        return Columns([self._sparse[rows].toarray(), self._labels[rows]], len(rows))
