"""TFRecord files, without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from towerpack.dataflow._datapoints import Block, Datapoint, Positions, as_ints
from towerpack.dataflow._opening import PathLike, PerProcess, files_of, path_of, reading
from towerpack.dataflow._plan import Node
from towerpack.dataflow.formats._example import Feature, checked_features, parse_example
from towerpack.dataflow.formats._indexed_files import FilePool, IndexedFiles
from towerpack.dataflow.formats._tfrecord_file import (
    damaged,
    is_compressed,
    records_in_order,
    unframed,
)
from towerpack.dataflow.formats._tfrecord_index import RecordIndex, index_files

Features = Mapping[str, Feature]


class TFRecordData(IndexedFiles):
    """Datapoint i is the i-th record: a list with its bytes, or what `features` makes of it.

    TensorFlow is not needed. All checksums are compared. Plain files are read at random: the
    lengths in them are walked once, when the length or the first datapoint is asked for, and 8
    bytes are kept for each record. Files compressed with gzip or zlib can only be read in order;
    one of them among others makes it so for all.

    Contract: in order of the files and of the records in them; length known for plain files; not
    random; thread- and fork-safe; resumable at once, compressed files by reading again.

    Args:
        paths: One file, several, or a pattern such as `train-*.tfrecord`.
        features: Parse the records as `tf.train.Example`, to dicts of these features.
        index_dir: A directory that is there, to keep in it what was walked, for the next time.

    Raises:
        ConfigError: There is no such file, or `features` describes none.
        FormatError: A file or record is damaged, or no example with these features; raised where
            it is read.
    """

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        features: Features | None = None,
        *,
        index_dir: PathLike | None = None,
    ) -> None:
        files = files_of(paths)
        super().__init__(files, in_order_only=any(map(is_compressed, files)))
        self.features = None if features is None else checked_features(features)
        self.index_dir = None if index_dir is None else path_of(index_dir)

    def content(self) -> str:
        return f"{super().content()}, {self.features}"

    def _index(self) -> Node:
        index = index_files(self.paths, self.index_dir)
        return TFRecordNode(self.paths, index, self.features)

    def _in_order(self) -> Iterator[Datapoint]:
        for path in self.paths:
            for number, record in enumerate(records_in_order(path)):
                yield _datapoint(record, self.features, path, f"record {number}")


class TFRecordNode(Node):
    """Reads records of plain files through an index."""

    def __init__(self, paths: list[Path], index: RecordIndex, features: Features | None) -> None:
        self.size = int(index.ends[-1])
        self._paths = paths
        self._index = index
        self._features = features
        self._pool = PerProcess(partial(FilePool, paths, index.versions))

    def read(self, epoch: int, positions: Positions) -> Block:
        return [self.get(epoch, position) for position in as_ints(positions)]

    def get(self, epoch: int, position: int) -> Datapoint:
        file, start, stop = self._index.find(position)
        path = self._paths[file]
        raw = self._pool.get().get(file).read_at(start, stop - start)
        if len(raw) != stop - start:
            raise damaged(path, start, "it is cut off")
        return _datapoint(unframed(raw, path, start), self._features, path, f"byte {start:,}")


def _datapoint(record: bytes, features: Features | None, path: Path, where: str) -> Datapoint:
    if features is None:
        return [record]
    with reading(path, f"a file of tf.train.Example ({where})"):
        return parse_example(record, features)
