"""How datapoints become records of files that know nothing but bytes."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from towerpack._core.errors import ConfigError, FormatError
from towerpack.dataflow._datapoints import Datapoint, describe_datapoint
from towerpack.dataflow._flow import DataFlow, length_of
from towerpack.dataflow.formats._wire import pack, unpack

Format = Literal["wire", "pickle"]


@dataclass(frozen=True)
class Codec:
    """From a datapoint to bytes and back."""

    encode: Callable[[Datapoint], bytes]
    decode: Callable[[bytes], Datapoint]


def codec_of(format: str, others: Mapping[str, Codec] | None = None) -> Codec:
    """The codec of a name: "wire", or "pickle", which runs whatever code the bytes name.

    Args:
        format: The name.
        others: What there is besides.

    Raises:
        ConfigError: There is no such format.
    """
    codecs = {**_CODECS, **(others or {})}
    if format not in codecs:
        raise ConfigError(f"There is no format={format!r}.", expected=" or ".join(codecs))
    return codecs[format]


def check_finite(ds: Iterable[Datapoint]) -> None:
    """Refuse to save what never ends.

    Raises:
        ConfigError: It is a flow that does not.
    """
    if isinstance(ds, DataFlow) and length_of(ds) == math.inf:
        raise ConfigError(
            "An endless flow cannot be saved.",
            fix="save one pass: the flow inside of RepeatedData; or FixedSizeData(ds, n)",
            pipeline=str(ds),
        )


def encoded(ds: Iterable[Datapoint], codec: Codec) -> Generator[bytes]:
    """The records of one pass.

    Raises:
        ConfigError: A datapoint cannot be written; it says which. Or they never end.
    """
    check_finite(ds)
    for index, datapoint in enumerate(ds):
        try:
            record = codec.encode(datapoint)
        except ConfigError as error:
            error.pipeline = error.pipeline or f"{ds}, datapoint {index}"
            raise
        yield record


def _unpacked(record: bytes) -> Datapoint:
    if record[:1] == pickle.PROTO:
        raise FormatError(
            "The record is a pickle: to read it runs the code that it names.",
            fix='format="pickle", if you trust the file as you trust a program',
        )
    return unpack(record, copy=True)


def _pickled(datapoint: Datapoint) -> bytes:
    try:
        return pickle.dumps(datapoint, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"A {type(datapoint).__name__} cannot be pickled: {type(error).__name__}: {error}.",
            got=describe_datapoint(datapoint),
            fix="leave out what cannot: functions made in functions, open files, locks",
        ) from error


_CODECS: Final[dict[str, Codec]] = {
    "wire": Codec(pack, _unpacked),
    "pickle": Codec(_pickled, pickle.loads),
}
