"""TFRecord files, read and written without TensorFlow."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._plan import Node
from towerpack.dataflow._user_files import PathLike, PerProcess, files_of, path_of, reading
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.formats._indexed_files import IndexedFiles, opener, version_of
from towerpack.dataflow.formats._protobuf import Feature, checked_features, parse_example
from towerpack.dataflow.formats._tfrecord_format import (
    Compression,
    framed,
    index_file,
    is_compressed,
    records_in_order,
    unframed,
)
from towerpack.dataflow.formats._writing import Format, codec_of, decoded, encoded, whole_file
from towerpack.dataflow.stages._repeat import FixedSizeData

Features = Mapping[str, Feature]

_WBITS: Final[dict[Compression, int]] = {"zlib": 15, "gzip": 31}  # as zlib calls its formats


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
        return TFRecordNode(self.paths, self.features, self.index_dir)

    def _in_order(self) -> Iterator[Datapoint]:
        for path in self.paths:
            for number, record in enumerate(records_in_order(path)):
                yield _datapoint(record, self.features, path, f"record {number}")


class TFRecordNode(Node):
    def __init__(
        self, paths: list[Path], features: Features | None, index_dir: PathLike | None = None
    ) -> None:
        versions = [version_of(path) for path in paths]
        parts = [index_file(*pair, index_dir) for pair in zip(paths, versions, strict=True)]
        self._offsets = np.concatenate(parts)
        self._ends = np.cumsum([len(part) - 1 for part in parts], dtype=np.int64)
        self.size = int(self._ends[-1])
        self._paths = paths
        self._features = features
        self._files = PerProcess(partial(opener, paths, versions))

    def find(self, position: int) -> tuple[int, int, int]:
        """Which file holds a record, where it begins, and where it ends."""
        file = int(self._ends.searchsorted(position, "right"))
        # Each file before this one has an offset more than records: where its last one ends.
        start, stop = self._offsets[position + file : position + file + 2].tolist()
        return file, start, stop

    def get(self, epoch: int, position: int) -> Datapoint:
        file, start, stop = self.find(position)
        path = self._paths[file]
        raw = self._files.get()(file).read_at(start, stop - start)
        return _datapoint(unframed(raw, path, start), self._features, path, f"byte {start:,}")


def _datapoint(record: bytes, features: Features | None, path: Path, where: str) -> Datapoint:
    if features is None:
        return [record]
    with reading(path, f"a file of tf.train.Example ({where})"):
        return parse_example(record, features)


class TFRecordWriter:
    """Write one file of records, which appears under its name when it is whole.

        with TFRecordWriter("train.tfrecord") as writer:
            writer.write(encode_example({"image": jpeg_bytes, "label": 3}))

    A block that raises leaves nothing behind.

    Args:
        path: Overwritten if it exists.
        compression: "gzip" or "zlib"; what is compressed can only be read in order.

    Raises:
        ConfigError: There is no such compression.
    """

    def __init__(self, path: PathLike, *, compression: Compression | None = None) -> None:
        if compression not in (None, "gzip", "zlib"):
            raise ConfigError(
                f"There is no compression={compression!r}.", expected='"gzip", "zlib" or None'
            )
        self.path = path_of(path)
        self.compression: Compression | None = compression
        self.written = 0
        self._file: IO[bytes] | None = None
        self._deflater: Any = None
        self._stack = ExitStack()

    def __enter__(self) -> TFRecordWriter:
        temporary = self._stack.enter_context(whole_file(self.path))
        self._file = self._stack.enter_context(open(temporary, "wb"))
        if self.compression:  # without a name or time in it: equal content gives an equal file
            self._deflater = zlib.compressobj(wbits=_WBITS[self.compression])
        return self

    def write(self, record: bytes) -> None:
        """Append one record: bytes, as `encode_example` or `pack` makes of a datapoint."""
        if self._file is None:
            raise ConfigError("The file is not open.", fix="with TFRecordWriter(path) as writer:")
        data = framed(memoryview(record).cast("B"))
        self._file.write(self._deflater.compress(data) if self._deflater else data)
        self.written += 1

    def __exit__(self, *exc: Any) -> None:
        if self._file and self._deflater:
            self._file.write(self._deflater.flush())
        self._file = None
        self._stack.__exit__(*exc)


class TFRecordSerializer:
    """Write a flow to a TFRecord file, and read it again."""

    @staticmethod
    def save(
        df: DataFlow,
        path: PathLike,
        *,
        format: Format = "wire",
        compression: Compression | None = None,
    ) -> None:
        """Write one pass of a flow.

        Args:
            df: Finite; its datapoints are what `pack` takes.
            path: The file; it appears, or replaces an older one, when it is whole.
            format: "example" writes dicts as `tf.train.Example`, which other programs read;
                "pickle" writes anything, which only you should read.
            compression: As for `TFRecordWriter`.

        Raises:
            ConfigError: A datapoint is nothing that can be written.
        """
        with TFRecordWriter(path, compression=compression) as writer:
            for record in encoded(df, format):
                writer.write(record)

    @staticmethod
    def load(
        path: PathLike,
        size: int | None = None,
        *,
        format: Format = "wire",
        features: Features | None = None,
    ) -> DataFlow:
        """The flow that was saved, in order; resumable at once if it is not compressed.

        Args:
            path: The file, or a pattern for several.
            size: Datapoints in a pass, for programs of the predecessor, which could not count them.
            format: As for `save`; "pickle" runs whatever code a file names.
            features: Of examples; these and errors as for `TFRecordData`.
        """
        _, decode = codec_of(format)
        if features is not None:
            if format != "example":
                raise ConfigError(
                    f"features= describes examples, and not format={format!r}.",
                    fix='format="example", or leave out features=',
                )
            decode = partial(parse_example, features=checked_features(features))
        ds = decoded(TFRecordData(path), decode)
        return ds if size is None else FixedSizeData(ds, size)
