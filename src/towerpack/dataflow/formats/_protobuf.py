"""`tf.train.Example` and Caffe's messages as protocol buffers, without TensorFlow or Caffe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.extras import require
from towerpack.dataflow.arguments import given
from towerpack.dataflow.datapoints import array_of, describe

# Message: its fields in the order of their numbers. A star repeats, a capital names a message.
_MESSAGES: Final = {
    "BytesList": "*bytes value",
    "FloatList": "*float value",
    "Int64List": "*int64 value",
    "Feature": "BytesList bytes_list, FloatList float_list, Int64List int64_list",
    "Features": "*Features.FeatureEntry feature",
    "Example": "Features features",
    "Datum": "int32 channels, int32 height, int32 width, bytes data, int32 label, "
    "*float float_data, bool encoded",
    "BlobProto": "int32 num, int32 channels, int32 height, int32 width, *float data",
}
_ENTRY: Final = "string key, Feature value"  # of the map in Features
_TYPES: Final = {"float": 2, "int64": 3, "int32": 5, "bool": 8, "string": 9, "bytes": 12}
_MESSAGE: Final = 11


@cache
def message_class(name: str) -> Any:
    """The class of `tf.train.Example` ("Example") or of Caffe's "Datum" or "BlobProto".

    A pool of its own keeps them apart from those that TensorFlow brings.
    """
    pb2, pools, factory = (
        require(f"google.protobuf.{module}", extra="formats", needed_for="tf.train.Example")
        for module in ("descriptor_pb2", "descriptor_pool", "message_factory")
    )
    file = pb2.FileDescriptorProto(name="towerpack.proto", package="towerpack", syntax="proto3")
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        _add_fields(message, fields)
        if message_name == "Features":
            entry = message.nested_type.add(name="FeatureEntry")
            entry.options.map_entry = True
            _add_fields(entry, _ENTRY)
        elif message_name == "Feature":
            message.oneof_decl.add(name="kind")
            for field in message.field:
                field.oneof_index = 0
    pool = pools.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return factory.GetMessageClass(pool.FindMessageTypeByName(f"towerpack.{name}"))


def _add_fields(message: Any, fields: str) -> None:
    for number, text in enumerate(fields.split(", "), 1):
        kind, name = text.removeprefix("*").split()
        field = message.field.add(name=name, number=number, label=3 if text[0] == "*" else 1)
        field.type = _TYPES.get(kind, _MESSAGE)
        if kind not in _TYPES:
            field.type_name = f".towerpack.{kind}"


_STRINGS: Final = (bytes, str, bytearray, memoryview)

Values = list[bytes] | NDArray[Any]


@dataclass(frozen=True)
class FixedFeature:
    """A feature that has the same number of values in every record.

    Attributes:
        shape: Of the array; `()` is a single value, `n` the same as `(n,)`.
        dtype: `bytes`, `str`, or a dtype of NumPy's: floats are stored as float32, integers and
            booleans as int64.
        default: What takes the place of a feature that is not there, or of which nothing is
            stored; by default that is an error.

    Raises:
        ConfigError: There is no such shape or dtype.
    """

    shape: int | Sequence[int]
    dtype: DTypeLike
    default: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _checked_shape(self.shape, self.dtype))

    def make(self, values: Values | None) -> Any:
        """The component of a datapoint."""
        sizes = cast("tuple[int, ...]", self.shape)
        if values is None and self.default is not None:
            dtype = object if self.dtype is bytes or self.dtype is str else self.dtype
            return np.full(sizes, self.default, dtype)[()]
        values, count = [] if values is None else values, math.prod(sizes)
        if len(values) != count:
            raise ValueError(f"it has {len(values):,} values instead of {count:,}")
        array = _as_array(values, self.dtype)
        return array.reshape(sizes) if sizes else array[0]


@dataclass(frozen=True)
class VariableFeature:
    """A feature with any number of values, none included.

    Attributes:
        dtype: As of a `FixedFeature`.
    """

    dtype: DTypeLike

    def __post_init__(self) -> None:
        _checked_shape((), self.dtype)

    def make(self, values: Values | None) -> NDArray[Any]:
        """The component of a datapoint: an array of one axis."""
        return _as_array([] if values is None else values, self.dtype)


Feature = FixedFeature | VariableFeature


def _checked_shape(shape: Any, dtype: Any) -> tuple[int, ...]:
    try:
        sizes = np.broadcast_to(0, shape).shape
        if dtype is bytes or dtype is str or np.dtype(dtype).kind in "biuf":
            return sizes
    except (TypeError, ValueError):
        pass
    raise ConfigError(
        "There are no features of this shape, or of this dtype.",
        got=f"shape {given(shape)}, dtype {given(dtype)}",
        expected="known sizes such as (3,), or () for a single value; bytes, str or a dtype of "
        "NumPy's for numbers",
        fix="VariableFeature, if their number differs",
    )


def checked_features(features: Any) -> dict[str, Feature]:
    """Features to make of records, as a dict of its own."""
    wanted = cast("Mapping[str, Any]", features)
    if not isinstance(features, Mapping) or not all(
        isinstance(feature, Feature) for feature in wanted.values()
    ):
        expected = '{"image": FixedFeature((), bytes), "ids": VariableFeature(int)}'
        raise ConfigError("features= describes none.", got=given(features), expected=expected)
    return dict(wanted)


def parse_example(record: bytes, features: Mapping[str, Feature] | None = None) -> dict[str, Any]:
    """The features of a serialized `tf.train.Example`, in the order of their names.

    Args:
        record: The message.
        features: Which ones, in this order, and what to make of them. By default all: int64 or
            float32 arrays, or lists of bytes.

    Raises:
        FormatError: It is no example, or its features are others.
    """
    example = message_class("Example")
    from google.protobuf.message import DecodeError  # late, as the class is

    try:
        stored = example.FromString(record).features.feature
    except DecodeError as error:
        raise FormatError(f"The record is no tf.train.Example, or damaged: {error}.") from error
    if features is None:
        names: list[str] = sorted(stored)
        return {name: [] if (got := _values(stored[name])) is None else got for name in names}
    parsed: dict[str, Any] = {}
    for name, feature in features.items():
        try:
            parsed[name] = feature.make(_values(stored[name]) if name in stored else None)
        except ValueError as error:
            kinds = [f"{one}: {_summary(_values(stored[one]))}" for one in sorted(stored)[:20]]
            raise FormatError(
                f"A tf.train.Example cannot be parsed: {name!r} is not as described: {error}.",
                got=", ".join(kinds) or "no features",
                fix="describe the features as they are; parse_example(record) shows them",
            ) from error
    return parsed


def encode_example(datapoint: Mapping[str, Any]) -> bytes:
    """A serialized `tf.train.Example`; equal datapoints give equal bytes.

    Shapes are not stored: arrays become flat lists. Floats are stored with 32 bits.

    Args:
        datapoint: Values of one kind by name: bytes, `str`, numbers, arrays or lists of these.

    Raises:
        ConfigError: A value is of none of these kinds.
    """
    if not isinstance(cast("object", datapoint), Mapping):
        raise ConfigError(
            "An example is a dict of features.",
            got=describe(datapoint),
            fix='MapData(ds, lambda dp: {"image": dp[0], "label": dp[1]})',
        )
    example = message_class("Example")()
    for name, value in datapoint.items():
        try:
            _fill(example.features.feature[name], value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"The feature {name!r} cannot be written.",
                got=f"{describe(cast('object', value))}; {error}",
                expected="a name of UTF-8; bytes, str, integers of 64 bits, floats, or a list or "
                "array of one",
            ) from error
    return example.SerializeToString(deterministic=True)


def _values(feature: Any) -> Values | None:
    """The values of a feature; `None` if it has no list, not even one without values."""
    kind = feature.WhichOneof("kind")
    if kind is None:
        return None
    values = getattr(feature, kind).value
    if kind == "bytes_list":
        return list(values)
    return np.array(values, np.float32 if kind == "float_list" else np.int64)


def _fill(feature: Any, value: Any) -> None:
    """Write values to a feature; of none, no list."""
    several = isinstance(value, (list, tuple, np.ndarray))
    value = array_of(value, "It") if isinstance(value, np.ndarray) else value
    items: list[Any] = np.asarray(value, object).ravel().tolist() if several else [value]
    if not items:
        return
    if all(isinstance(item, _STRINGS) for item in items):
        encoded = (item.encode() if isinstance(item, str) else bytes(item) for item in items)
        feature.bytes_list.value.extend(encoded)
    elif all(isinstance(item, (int, np.integer, np.bool_)) for item in items):
        feature.int64_list.value.extend(map(int, items))
    else:
        feature.float_list.value.extend(items)


def _as_array(values: Values, dtype: DTypeLike) -> NDArray[Any]:
    """Values as the dtype that was asked for, if they are of its kind and fit it."""
    if dtype is bytes or dtype is str:
        if not isinstance(values, list):
            raise ValueError(f"it holds {values.dtype}, not {dtype.__name__}")
        strings = np.empty(len(values), object)
        strings[:] = values if dtype is bytes else [value.decode() for value in values]
        return strings
    wanted = np.dtype(dtype)
    if isinstance(values, list):
        if values:
            raise ValueError(f"it holds bytes, not {wanted}")
        return np.zeros(0, wanted)
    if len(values) and (values.dtype.kind == "f") != (wanted.kind == "f"):
        raise ValueError(f"it holds {values.dtype}, not {wanted}")
    array = values.astype(wanted, copy=False)
    if wanted.kind in "biu" and (array != values).any():
        raise ValueError(f"its values do not fit {wanted}")
    return array


def _summary(values: Values | None) -> str:
    if values is None:
        return "nothing"
    return f"{len(values):,} {'bytes' if isinstance(values, list) else values.dtype}"
