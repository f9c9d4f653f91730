from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import IO, Any, Final

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._plan import Node
from towerpack.dataflow._user_files import AnyFile, PathLike, files_of, path_of, reading
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.formats._indexed_files import IndexedFiles, PlacedNode, each_of, version_of
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
    """Source of TFRecord files: datapoint i is a list with the bytes of record i, or its features.

    All checksums are checked. Uncompressed files have random access: they are indexed when the
    length or the first datapoint is requested, with 8 bytes per record. Files compressed with gzip
    or zlib can only be read in order, and so can a list that contains one of them.

    Thread- and fork-safe. Resumes at once, or by reading again if compressed.

    Args:
        paths: One file, several, or a pattern such as `train-*.tfrecord`.
        features: Parse records as `tf.train.Example` to dicts of these features.
        index_dir: Existing directory in which to store indexes for later runs.

    Raises:
        ConfigError: A file does not exist, or `features` is invalid.
        FormatError: A file or record is damaged, or is not an example with these features. Raised
            during iteration.
    """

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        features: Features | None = None,
        *,
        index_dir: PathLike | None = None,
    ) -> None:
        files = files_of(paths)
        super().__init__(files, in_order_only=any(each_of(files, is_compressed)))
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


class TFRecordNode(PlacedNode):
    def __init__(
        self, paths: list[AnyFile], features: Features | None, index_dir: PathLike | None = None
    ) -> None:
        versions = [version_of(path) for path in paths]
        super().__init__(paths, versions)
        known = dict(zip(paths, versions, strict=True))
        parts = each_of(paths, lambda path: index_file(path, known[path], index_dir))
        self._offsets = np.concatenate(parts)
        self._ends = np.cumsum([len(part) - 1 for part in parts], dtype=np.int64)
        self.size = int(self._ends[-1])
        self._features = features

    def place_of(self, position: int) -> tuple[int, int, int]:
        file = int(self._ends.searchsorted(position, "right"))
        # Each file before this one has one more offset than records: the end of the last record.
        start, stop = self._offsets[position + file : position + file + 2].tolist()
        return file, start, stop

    def name_of(self, index: int) -> str:
        file, start, _ = self.place_of(index)
        return f"{self._paths[file]}, byte {start:,}"

    def get(self, epoch: int, position: int) -> Datapoint:
        file, start, stop = self.place_of(position)
        path = self._paths[file]
        raw = self._files.get()(file).read_at(start, stop - start)
        return _datapoint(unframed(raw, path, start), self._features, path, f"byte {start:,}")


def _datapoint(record: bytes, features: Features | None, path: AnyFile, where: str) -> Datapoint:
    if features is None:
        return [record]
    with reading(path, f"a file of tf.train.Example ({where})"):
        return parse_example(record, features)


class TFRecordWriter:
    """Writer of a TFRecord file, which appears at its path when it is complete.

        with TFRecordWriter("train.tfrecord") as writer:
            writer.write(encode_example({"image": jpeg_bytes, "label": 3}))

    If the block raises an error, no file is written.

    Args:
        path: The file. An existing file is replaced.
        compression: "gzip" or "zlib". Compressed files can only be read in order.

    Raises:
        ConfigError: `compression` has another value.
    """

    def __init__(self, path: PathLike, *, compression: Compression | None = None) -> None:
        if compression not in (None, "gzip", "zlib"):
            raise ConfigError(f'compression must be "gzip", "zlib" or None, got {compression!r}.')
        self.path = path_of(path)
        self.compression: Compression | None = compression
        self.written = 0
        self.nbytes = 0
        self._file: IO[bytes] | None = None
        self._deflater: Any = None
        self._stack = ExitStack()

    def __enter__(self) -> TFRecordWriter:
        temporary = self._stack.enter_context(whole_file(self.path))
        self._file = self._stack.enter_context(open(temporary, "wb"))
        if self.compression:  # stores no name or time, so that equal contents give equal files
            self._deflater = zlib.compressobj(wbits=_WBITS[self.compression])
        return self

    def write(self, record: bytes) -> None:
        """Append one record.

        Args:
            record: Bytes, for example of `encode_example` or `pack`.

        Raises:
            ConfigError: The file is not open.
        """
        if self._file is None:
            fix = "call write inside the block `with TFRecordWriter(path) as writer:`"
            raise ConfigError(f"The file {self.path} must be open to be written.", fix=fix)
        data = framed(memoryview(record).cast("B"))
        self.nbytes += len(data)
        self._file.write(self._deflater.compress(data) if self._deflater else data)
        self.written += 1

    def __exit__(self, *exc: Any) -> None:
        if self._file and self._deflater:
            self._file.write(self._deflater.flush())
        self._file = None
        self._stack.__exit__(*exc)


class TFRecordSerializer:
    """Serializer of flows to TFRecord files."""

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
            df: Finite flow of datapoints.
            path, compression: See `TFRecordWriter`.
            format: See `LMDBSerializer.save`.

        Raises:
            ConfigError: A datapoint cannot be written.
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
        """Return the saved flow, in order. Errors are as for `TFRecordData`.

        Args:
            path: The file, or a pattern such as `train-*.tfrecord`.
            size: Number of datapoints in a pass (default: all). Tensorpack needed it for `len`.
            format: See `LMDBSerializer.load`.
            features: Features of the format "example", as for `TFRecordData`.

        Raises:
            ConfigError: `features` is invalid, or does not match `format`.
        """
        _, decode = codec_of(format)
        if features is not None:
            if format != "example":
                raise ConfigError(
                    f'features= requires format="example", got format={format!r}.',
                    fix='pass format="example", or leave out features=',
                )
            decode = partial(parse_example, features=checked_features(features))
        ds = decoded(TFRecordData(path), decode)
        return ds if size is None else FixedSizeData(ds, size)
