"""Helpers of file writers: atomic files, codecs of datapoints, and checks."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Literal

from towerpack._core.errors import BatchError, ConfigError, FormatError
from towerpack._core.files import replacing
from towerpack.dataflow._flow import DataFlow, length_of, read_pass
from towerpack.dataflow._stacking import stack_rows
from towerpack.dataflow._user_files import PathLike, path_of
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.formats._protobuf import encode_example, parse_example
from towerpack.dataflow.formats._wire import pack, unpack
from towerpack.dataflow.stages._map import MapData

RAGGED: Final = "use LMDBSerializer or TFRecordSerializer, which support datapoints of any shapes"

Format = Literal["wire", "example", "pickle"]


@contextlib.contextmanager
def whole_file(path: PathLike) -> Generator[Path]:
    """Provide a temporary path to write to, and rename it to `path` at the end of the block.

    If the block raises an error, the temporary file is removed and an older file is unchanged.
    """
    target = path_of(path)
    if target.is_dir():
        raise ConfigError(f"{str(target)!r} must be a file, but it is a directory.")
    if not target.parent.is_dir():
        raise ConfigError(
            f"The directory {str(target.parent)!r} for {target.name!r} does not exist.",
            fix="create the directory, or correct the path",
        )
    with replacing(target) as temporary:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())


Decode = Callable[[bytes], Datapoint]


def codec_of(format: Format) -> tuple[Callable[[Datapoint], bytes], Decode]:
    codecs: dict[str, tuple[Callable[[Datapoint], bytes], Decode]] = {
        "wire": (pack, _unpacked),
        "example": (encode_example, parse_example),
        "pickle": (partial(pickle.dumps, protocol=5), pickle.loads),
    }
    if format not in codecs:
        raise ConfigError(f"format must be {' or '.join(codecs)}, got {format!r}.")
    return codecs[format]


def check_finite(ds: Iterable[Datapoint]) -> None:
    if isinstance(ds, DataFlow) and length_of(ds) == math.inf:
        raise ConfigError(
            "A flow to save must be finite.",
            fix="save the flow that RepeatedData wraps, or FixedSizeData(ds, n)",
            pipeline=str(ds),
        )


def encoded(ds: Iterable[Datapoint], format: Format) -> Generator[bytes]:
    """Iterate over the encoded datapoints of one pass. Errors name the datapoint."""
    check_finite(ds)
    encode, _ = codec_of(format)
    for index, datapoint in enumerate(read_pass(ds)):
        try:
            if datapoint is None:
                fix = "remove the datapoint with FilterData, or yield (None,)"
                raise ConfigError("A datapoint to save must not be None.", fix=fix)
            record = encode(datapoint)
        except ConfigError as error:
            error.pipeline = error.pipeline or f"{ds}, datapoint {index}"
            raise
        yield record


def decoded(records: DataFlow, decode: Decode) -> DataFlow:
    ds = MapData(records, partial(_decoded, decode))
    ds.skipping = None  # readers of files have no such argument to mention in errors
    return ds


def _decoded(decode: Decode, record: Sequence[bytes]) -> Datapoint:
    return decode(record[-1])


def stack_for_file(rows: list[Datapoint]) -> Datapoint:
    """Stack datapoints. Errors advise about saving, not about batching."""
    try:
        return stack_rows(rows)
    except BatchError as error:
        if "batching" in (error.fix or ""):
            error.fix = f"convert or remove components before saving, or {RAGGED}"
        raise


def is_utf8(text: str, errors: str = "strict") -> bool:
    """Return whether a text can be encoded (no lone surrogates) and contains no NUL."""
    try:
        return b"\0" not in text.encode("utf-8", errors)
    except UnicodeEncodeError:
        return False


def _unpacked(record: bytes) -> Datapoint:
    if record[:1] == pickle.PROTO:
        raise FormatError(
            "The record is pickled, and unpickling can run any code.",
            fix='pass format="pickle" if you trust the source of the file',
        )
    return unpack(record, copy=True)
