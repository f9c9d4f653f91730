"""What writers of files share: whole files, codecs of datapoints, checks."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import secrets
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Literal

from towerpack._core.errors import BatchError, ConfigError, FormatError
from towerpack._core.files import fsync_dir
from towerpack.dataflow._flow import DataFlow, length_of, read_pass
from towerpack.dataflow._stacking import stack_rows
from towerpack.dataflow._user_files import PathLike, path_of
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.formats._protobuf import encode_example, parse_example
from towerpack.dataflow.formats._wire import pack, unpack
from towerpack.dataflow.stages._map import MapData

RAGGED: Final = "LMDBSerializer or TFRecordSerializer, which take datapoints of any shapes"

Format = Literal["wire", "example", "pickle"]


@contextlib.contextmanager
def whole_file(path: PathLike) -> Generator[Path]:
    """Where to write a file; it takes its name, or that of an older one, at the end of the block.

    A block that raises leaves nothing behind, and an older file as it was.
    """
    target = path_of(path)
    if target.is_dir():
        raise ConfigError(f"{str(target)!r} is a directory.", expected="a file")
    if not target.parent.is_dir():
        raise ConfigError(
            f"There is no directory {str(target.parent)!r} to write {target.name!r} to.",
            fix="make it first, or check the path",
        )
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_dir(target.parent)


Decode = Callable[[bytes], Datapoint]


def codec_of(format: Format) -> tuple[Callable[[Datapoint], bytes], Decode]:
    """Return the encoder and the decoder of a format. "pickle" runs whatever code bytes name."""
    codecs: dict[str, tuple[Callable[[Datapoint], bytes], Decode]] = {
        "wire": (pack, _unpacked),
        "example": (encode_example, parse_example),
        "pickle": (partial(pickle.dumps, protocol=5), pickle.loads),
    }
    if format not in codecs:
        raise ConfigError(f"There is no format={format!r}.", expected=" or ".join(codecs))
    return codecs[format]


def check_finite(ds: Iterable[Datapoint]) -> None:
    """Refuse to save a flow that never ends."""
    if isinstance(ds, DataFlow) and length_of(ds) == math.inf:
        raise ConfigError(
            "An endless flow cannot be saved.",
            fix="save one pass: the flow inside of RepeatedData; or FixedSizeData(ds, n)",
            pipeline=str(ds),
        )


def encoded(ds: Iterable[Datapoint], format: Format) -> Generator[bytes]:
    """The records of one pass; the error for one that cannot be written says which it is."""
    check_finite(ds)
    encode, _ = codec_of(format)
    for index, datapoint in enumerate(read_pass(ds)):
        try:
            if datapoint is None:
                fix = "leave it out with FilterData, or yield (None,)"
                raise ConfigError("None is no datapoint that could be read again.", fix=fix)
            record = encode(datapoint)
        except ConfigError as error:
            error.pipeline = error.pipeline or f"{ds}, datapoint {index}"
            raise
        yield record


def decoded(records: DataFlow, decode: Decode) -> DataFlow:
    """The datapoints in the last components of records."""
    ds = MapData(records, partial(_decoded, decode))
    ds.skipping = None  # which is an argument of the map, and not of those who read files
    return ds


def _decoded(decode: Decode, record: Sequence[bytes]) -> Datapoint:
    return decode(record[-1])


def stack_for_file(rows: list[Datapoint]) -> Datapoint:
    """Stack datapoints as `stack_rows`, whose errors are about batches."""
    try:
        return stack_rows(rows)
    except BatchError as error:
        if "batching" in (error.fix or ""):
            error.fix = f"convert components, or leave some out, before saving; or {RAGGED}"
        raise


def is_utf8(text: str, errors: str = "strict") -> bool:
    """Whether a text can be encoded, without lone surrogates, and holds no NUL."""
    try:
        return b"\0" not in text.encode("utf-8", errors)
    except UnicodeEncodeError:
        return False


def _unpacked(record: bytes) -> Datapoint:
    if record[:1] == pickle.PROTO:
        raise FormatError(
            "The record is a pickle: to read it runs the code that it names.",
            fix='format="pickle", if you trust the file as you trust a program',
        )
    return unpack(record, copy=True)
