"""Writing TFRecord files."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, Literal, cast

from towerpack._core.errors import ConfigError
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._opening import PathLike, path_of
from towerpack.dataflow.formats._codecs import Codec, codec_of, encoded
from towerpack.dataflow.formats._example import (
    Feature,
    checked_features,
    encode_example,
    parse_example,
)
from towerpack.dataflow.formats._tfrecord import TFRecordData
from towerpack.dataflow.formats._tfrecord_file import Compression, framed
from towerpack.dataflow.formats._whole_file import whole_file
from towerpack.dataflow.stages._map import MapData
from towerpack.dataflow.stages._repeat import FixedSizeData

RecordFormat = Literal["wire", "example", "pickle"]


class TFRecordWriter:
    """Writes one file of records, which appears under its name when it is whole.

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
        self._file: IO[bytes] | _Deflated | None = None
        self._stack = ExitStack()

    def __enter__(self) -> TFRecordWriter:
        temporary = self._stack.enter_context(whole_file(self.path))
        self._file = self._stack.enter_context(_opened(temporary, self.compression))
        return self

    def write(self, record: bytes) -> None:
        """Append one record.

        Raises:
            ConfigError: It is no bytes, or the file is not open.
        """
        if not isinstance(cast("object", record), (bytes, bytearray, memoryview)):
            raise ConfigError(
                f"A record is bytes, not a {type(record).__name__}.",
                fix="encode_example(...) or pack(...) makes bytes of a datapoint",
            )
        if self._file is None:
            raise ConfigError(
                "The file is not open.", fix="with TFRecordWriter(path) as writer: ..."
            )
        self._file.write(framed(record))
        self.written += 1

    def __exit__(self, *exc: Any) -> None:
        self._file = None
        self._stack.__exit__(*exc)


class TFRecordSerializer:
    """Writes a flow to a TFRecord file, and reads it again."""

    @staticmethod
    def save(
        df: DataFlow,
        path: PathLike,
        *,
        format: RecordFormat = "wire",
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
        records = encoded(df, _codec(format))
        with TFRecordWriter(path, compression=compression) as writer:
            for record in records:
                writer.write(record)

    @staticmethod
    def load(
        path: PathLike,
        size: int | None = None,
        *,
        format: RecordFormat = "wire",
        features: Mapping[str, Feature] | None = None,
    ) -> DataFlow:
        """The flow that was saved, in order; resumable at once if it is not compressed.

        Args:
            path: The file, or a pattern for several.
            size: Datapoints in a pass, for programs of the predecessor, which could not count them.
            format: As for `save`; "pickle" runs whatever code a file names.
            features: What to make of examples, as for `TFRecordData`.

        Raises:
            ConfigError: There is no such file or format, or `features` are for another one.
            FormatError: The file or a checksum is damaged; raised while iterating.
        """
        decode = _codec(format).decode
        if features is not None:
            if format != "example":
                raise ConfigError(
                    f"features= describes examples, and not format={format!r}.",
                    fix='format="example", or leave out features=',
                )
            decode = partial(parse_example, features=checked_features(features))
        ds = MapData(TFRecordData(path), partial(_decoded, decode))
        ds.skipping = None  # which is an argument of the map, and not of this
        return ds if size is None else FixedSizeData(ds, size)


_WBITS: Final[dict[Compression, int]] = {"zlib": 15, "gzip": 31}  # as zlib calls its formats
_EXAMPLES: Final = Codec(encode_example, parse_example)


def _codec(format: RecordFormat) -> Codec:
    return codec_of(format, {"example": _EXAMPLES})


def _decoded(decode: Any, datapoint: list[bytes]) -> Any:
    return decode(datapoint[0])


def _opened(path: Path, compression: Compression | None) -> Any:
    return open(path, "wb") if compression is None else _Deflated(path, _WBITS[compression])


class _Deflated:
    """A compressed file; equal content gives an equal file, without a name or time in it."""

    def __init__(self, path: Path, wbits: int) -> None:
        self._file = open(path, "wb")  # noqa: SIM115  closed by __exit__
        self._deflater = zlib.compressobj(wbits=wbits)

    def __enter__(self) -> _Deflated:
        return self

    def write(self, data: bytes) -> None:
        """Append to the content."""
        self._file.write(self._deflater.compress(data))

    def __exit__(self, *exc: object) -> None:
        self._file.write(self._deflater.flush())
        self._file.close()
