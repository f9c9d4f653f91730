"""Protocol buffers of `tf.train.Example` and Caffe, without TensorFlow or Caffe."""

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
from towerpack.dataflow.arguments import repr_of
from towerpack.dataflow.datapoints import array_of, describe

# Fields of each message in the order of their numbers. A star marks repeated fields.
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
_ENTRY: Final = "string key, Feature value"  # entry of the map in Features
_TYPES: Final = {"float": 2, "int64": 3, "int32": 5, "bool": 8, "string": 9, "bytes": 12}
_MESSAGE: Final = 11


@cache
def message_class(name: str) -> Any:
    """Return the class of `tf.train.Example` ("Example"), or of Caffe's "Datum" or "BlobProto".

    A separate descriptor pool avoids conflicts with the messages of TensorFlow.
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
    """Feature with the same number of values in every record.

    Attributes:
        shape: Shape of the array. `()` is a single value, `n` is the same as `(n,)`.
        dtype: `bytes`, `str`, or a NumPy dtype. Floats are stored as float32, integers and booleans
            as int64.
        default: Value of a missing or empty feature (default: a missing feature is an error).

    Raises:
        ConfigError: The shape or dtype is not supported.
    """

    shape: int | Sequence[int]
    dtype: DTypeLike
    default: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _checked_shape(self.shape, self.dtype))

    def make(self, values: Values | None) -> Any:
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
    """Feature with any number of values, including none.

    Attributes:
        dtype: See `FixedFeature`.
    """

    dtype: DTypeLike

    def __post_init__(self) -> None:
        _checked_shape((), self.dtype)

    def make(self, values: Values | None) -> NDArray[Any]:
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
        "The shape or the dtype of a feature is not supported.",
        got=f"shape {repr_of(shape)}, dtype {repr_of(dtype)}",
        expected="sizes such as (3,), or () for a single value; bytes, str or a NumPy dtype of "
        "numbers",
        fix="use VariableFeature if the number of values differs",
    )


def checked_features(features: Any) -> dict[str, Feature]:
    described = cast("Mapping[str, Any]", features)
    if not isinstance(features, Mapping) or not all(
        isinstance(feature, Feature) for feature in described.values()
    ):
        expected = '{"image": FixedFeature((), bytes), "ids": VariableFeature(int)}'
        what = "features must be a dict of FixedFeature and VariableFeature."
        raise ConfigError(what, got=repr_of(features), expected=expected)
    return dict(described)


def parse_example(record: bytes, features: Mapping[str, Feature] | None = None) -> dict[str, Any]:
    """Parse a serialized `tf.train.Example` to a dict of features.

    Args:
        record: The serialized message.
        features: Features to read, in this order. By default, all features are read in the order of
            their names, as int64 or float32 arrays or lists of bytes.

    Raises:
        FormatError: The record is not an example, or has different features.
    """
    example = message_class("Example")
    from google.protobuf.message import DecodeError  # only now, because protobuf is optional

    try:
        stored = example.FromString(record).features.feature
    except DecodeError as error:
        raise FormatError(f"The record is not a valid tf.train.Example: {error}.") from error
    if features is None:
        names: list[str] = sorted(stored)
        return {name: [] if (got := _values(stored[name])) is None else got for name in names}
    parsed: dict[str, Any] = {}
    for name, feature in features.items():
        try:
            parsed[name] = feature.make(_values(stored[name]) if name in stored else None)
        except ValueError as error:
            kinds = [f"{key}: {_summary(_values(stored[key]))}" for key in sorted(stored)[:20]]
            raise FormatError(
                f"The feature {name!r} of a tf.train.Example does not match features=: {error}.",
                got=", ".join(kinds) or "no features",
                fix="correct features=, after looking at the result of parse_example(record)",
            ) from error
    return parsed


def encode_example(datapoint: Mapping[str, Any]) -> bytes:
    """Serialize a dict as `tf.train.Example`. Equal dicts give equal bytes.

    Shapes are not stored, so arrays become flat lists. Floats are stored with 32 bits.

    Args:
        datapoint: Features by name: bytes, `str`, numbers, and arrays or lists of these.

    Raises:
        ConfigError: The datapoint is not a dict, or a value has another type.
    """
    if not isinstance(cast("object", datapoint), Mapping):
        raise ConfigError(
            "A datapoint must be a dict of features to become a tf.train.Example.",
            got=describe(datapoint),
            fix='convert datapoints: MapData(ds, lambda dp: {"image": dp[0], "label": dp[1]})',
        )
    example = message_class("Example")()
    for name, value in datapoint.items():
        try:
            _fill(example.features.feature[name], value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"The feature {name!r} cannot be stored in a tf.train.Example.",
                got=f"{describe(cast('object', value))}; {error}",
                expected="a UTF-8 name; bytes, str, 64-bit integers, floats, or a list or array "
                "of one of these types",
            ) from error
    return example.SerializeToString(deterministic=True)


def _values(feature: Any) -> Values | None:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return None
    values = getattr(feature, kind).value
    if kind == "bytes_list":
        return list(values)
    return np.array(values, np.float32 if kind == "float_list" else np.int64)


def _fill(feature: Any, value: Any) -> None:
    several = isinstance(value, (list, tuple, np.ndarray))
    value = array_of(value, "The value") if isinstance(value, np.ndarray) else value
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
    """Convert values to a dtype. Raise `ValueError` if they are of another kind or do not fit."""
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
