"""`tf.train.Example`, without TensorFlow: named lists of bytes, floats or integers.

Example   features = 1: Features
Features  feature = 1: map of str to Feature
Feature   bytes_list = 1, float_list = 2 or int64_list = 3, each with value = 1, repeated
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.dataflow._arguments import given
from towerpack.dataflow._datapoints import describe
from towerpack.dataflow.formats._protobuf import (
    BYTES,
    FIXED32,
    VARINT,
    bytes_field,
    fields,
    pack_varints,
    packed_floats,
    packed_varints,
    varint,
)

_BYTES, _FLOATS, _INTEGERS = 1, 2, 3
_KINDS: Final = {_BYTES: "bytes", _FLOATS: "floats", _INTEGERS: "integers"}

_STRINGS: Final = (bytes, str, bytearray, memoryview)
_FEATURES: Final = '{"image": FixedFeature((), bytes), "ids": VariableFeature(int)}'

Values = list[bytes] | NDArray[Any]
Found = dict[str, Values | None]
"""Features as they are stored; `None` is one of which nothing is."""


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
        ConfigError: There is no such shape or dtype, or `default` is not of it.
    """

    shape: int | Sequence[int]
    dtype: DTypeLike
    default: Any = None

    def __post_init__(self) -> None:
        _check_dtype(self.dtype)
        sizes = _sizes(self.shape)
        object.__setattr__(self, "shape", sizes)
        try:
            if self.default is not None:
                self._filled(sizes)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"The default does not fit the feature: {error}.",
                got=given(self.default),
                expected=f"{self.dtype} {list(sizes)}",
            ) from error

    def make(self, values: Values | None) -> Any:
        """The component of a datapoint."""
        sizes = _sizes(self.shape)
        if values is None and self.default is not None:
            return self._filled(sizes)
        count = math.prod(sizes)
        if values is None and count:
            raise ValueError("it is not there")
        values = [] if values is None else values
        if len(values) != count:
            raise ValueError(f"it has {len(values):,} values instead of {count:,}")
        array = _as_array(values, self.dtype)
        return array[0] if len(sizes) == 0 else array.reshape(sizes)

    def _filled(self, sizes: tuple[int, ...]) -> Any:
        strings = self.dtype is bytes or self.dtype is str
        return np.full(sizes, self.default, object if strings else self.dtype)[()]


@dataclass(frozen=True)
class VariableFeature:
    """A feature with any number of values, none included.

    Attributes:
        dtype: As of a `FixedFeature`.
    """

    dtype: DTypeLike

    def __post_init__(self) -> None:
        _check_dtype(self.dtype)

    def make(self, values: Values | None) -> NDArray[Any]:
        """The component of a datapoint: an array of one axis."""
        return _as_array([] if values is None else values, self.dtype)


Feature = FixedFeature | VariableFeature


def _check_dtype(dtype: Any) -> None:
    if dtype is bytes or dtype is str:
        return
    try:
        known = dtype is not None and np.dtype(dtype).kind in "biuf"
    except TypeError:
        known = False
    if not known:
        raise ConfigError(
            "There are no features of this dtype.",
            got=given(dtype),
            expected="bytes, str, or a dtype of NumPy's for numbers, such as np.int64",
        )


def _sizes(shape: Any) -> tuple[int, ...]:
    try:
        many = isinstance(shape, Iterable)
        items: list[Any] = list(cast("Iterable[Any]", shape)) if many else [shape]
        sizes = tuple(operator.index(size) for size in items)
    except TypeError:
        sizes = (-1,)
    if min(sizes, default=0) < 0:
        raise ConfigError(
            "There are no features of this shape.",
            got=given(shape),
            expected="sizes that are known, such as (3,), or () for a single value",
            fix="VariableFeature, if their number differs",
        )
    return sizes


def checked_features(features: Any) -> dict[str, Feature]:
    """What features to make of records, as a dict of its own.

    Raises:
        ConfigError: It is no mapping from names to features.
    """
    if not isinstance(features, Mapping):
        raise ConfigError("features is no dict.", got=given(features), expected=_FEATURES)
    wanted = dict(cast("Mapping[Any, Any]", features))
    for name, feature in wanted.items():
        if not isinstance(feature, Feature):
            raise ConfigError(
                f"The feature {name!r} is not described.", got=given(feature), expected=_FEATURES
            )
    return wanted


def parse_example(record: bytes, features: Mapping[str, Feature] | None = None) -> dict[str, Any]:
    """The features of a serialized `tf.train.Example`.

    Args:
        record: The message.
        features: Which ones, and what to make of them. By default all: int64 or float32 arrays, or
            lists of bytes.

    Raises:
        FormatError: It is no example, or its features are others.
    """
    try:
        found = _features(memoryview(record))
    except ValueError as error:
        raise _not_parsed(f"it is damaged: {error}", "the record") from error
    if features is None:
        return {name: [] if values is None else values for name, values in found.items()}
    parsed: dict[str, Any] = {}
    for name, feature in features.items():
        try:
            parsed[name] = feature.make(found.get(name))
        except ValueError as error:
            raise _not_parsed(f"{name!r} is not as described: {error}", _listed(found)) from error
    return parsed


def encode_example(datapoint: Mapping[str, Any]) -> bytes:
    """A serialized `tf.train.Example`.

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
    entries = [
        bytes_field(1, bytes_field(1, _name(name)) + bytes_field(2, _encoded(name, value)))
        for name, value in datapoint.items()
    ]
    return bytes_field(1, b"".join(entries))


def _features(record: memoryview) -> Found:
    found: Found = {}
    for features in _messages(record, 1):
        for entry in _messages(features, 1):
            name, values = "", memoryview(b"")
            for field, kind, content in fields(entry):
                if field in (1, 2) and (kind != BYTES or isinstance(content, int)):
                    raise ValueError(f"a feature's name or value is of wire type {kind}")
                if field == 1:
                    name = str(cast("memoryview", content), "utf-8")
                elif field == 2:
                    values = cast("memoryview", content)
            found[name] = _values(values)
    return found


def _messages(data: memoryview, wanted: int) -> list[memoryview]:
    """The contents of a field that holds messages."""
    found: list[memoryview] = []
    for field, kind, content in fields(data):
        if field == wanted:
            if kind != BYTES or isinstance(content, int):
                raise ValueError(f"field {field} is of wire type {kind}")
            found.append(content)
    return found


def _values(feature: memoryview) -> Values | None:
    """The values of a feature; `None` if it has no list, not even one without values."""
    kind, pieces = 0, list[memoryview]()
    for field, wire, content in fields(feature):
        if field not in _KINDS:
            continue
        if wire != BYTES or isinstance(content, int):
            raise ValueError(f"a list of values is of wire type {wire}")
        # Of several kinds the last one counts. Messages in pieces are merged by joining them.
        if field != kind:
            kind, pieces = field, []
        pieces.append(content)
    if not kind:
        return None
    return _list(kind, pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces)))


def _list(kind: int, data: memoryview) -> Values:
    if kind == _BYTES:
        return [bytes(content) for content in _messages(data, 1)]
    pieces: list[memoryview | bytes] = []
    for field, wire, content in fields(data):
        if field != 1:
            continue
        if wire == BYTES and not isinstance(content, int):
            if len(content) % 4 if kind == _FLOATS else bytes(content[-1:]) > b"\x7f":
                raise ValueError(f"a list of {_KINDS[kind]} ends within one")
            pieces.append(content)
        elif wire == FIXED32 and kind == _FLOATS and not isinstance(content, int):
            pieces.append(content)
        elif wire == VARINT and kind == _INTEGERS and isinstance(content, int):
            pieces.append(varint(content))
        else:
            raise ValueError(f"a list of {_KINDS[kind]} is of wire type {wire}")
    packed = memoryview(b"".join(pieces))
    return packed_floats(packed) if kind == _FLOATS else packed_varints(packed)


def _as_array(values: Values, dtype: DTypeLike) -> NDArray[Any]:
    """Values as the dtype that was asked for, if they are of its kind and fit it."""
    if dtype is bytes or dtype is str:
        return _strings(values, dtype is str)
    wanted = np.dtype(dtype)
    if isinstance(values, list):
        if values:
            raise ValueError(f"it holds bytes, not {wanted}")
        return np.zeros(0, wanted)
    if len(values) and (values.dtype.kind == "f") != (wanted.kind == "f"):
        raise ValueError(f"it holds {values.dtype}, not {wanted}")
    if values.dtype == wanted:
        return values
    array = values.astype(wanted)
    if wanted.kind in "biu" and (array != values).any():
        raise ValueError(f"its values do not fit {wanted}")
    return array


def _strings(values: Values, text: bool) -> NDArray[Any]:
    if not isinstance(values, list):
        raise ValueError(f"it holds {values.dtype}, not {'str' if text else 'bytes'}")
    array = np.empty(len(values), object)
    for index, value in enumerate(values):
        array[index] = str(value, "utf-8") if text else value
    return array


def _name(name: object) -> bytes:
    try:
        return str.encode(cast("str", name))
    except (TypeError, UnicodeEncodeError) as error:
        raise ConfigError(
            "This is no name of a feature.", got=given(name), expected="a str that UTF-8 can write"
        ) from error


def _encoded(name: str, value: Any) -> bytes:
    """A feature with its list; of no values, one without a list."""
    try:
        strings = _as_bytes(value)
    except UnicodeEncodeError as error:
        raise _not_written(name, str(error)) from error
    if strings is not None:
        return bytes_field(_BYTES, b"".join(bytes_field(1, item) for item in strings))
    try:
        array: NDArray[Any] = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.array(None)
    kind = array.dtype.kind
    if array.size == 0:
        return b""
    if kind == "f" and not (isinstance(value, (list, tuple)) and _all_integers(value)):
        return bytes_field(_FLOATS, bytes_field(1, array.astype("<f4").tobytes()))
    if kind in "bi" or (kind == "u" and array.max() < 1 << 63):
        packed = pack_varints(array.ravel().astype(np.int64))
        return bytes_field(_INTEGERS, bytes_field(1, packed))
    raise _not_written(name, describe(cast("object", value)))


def _all_integers(value: Any) -> bool:
    """Whether NumPy made floats of integers, as no type of its own holds all of them."""
    items: list[Any] = np.asarray(value, object).ravel().tolist()
    return all(isinstance(item, (int, np.integer)) for item in items)


def _not_written(name: str, got: str) -> ConfigError:
    return ConfigError(
        f"The feature {name!r} cannot be written.",
        got=got,
        expected="bytes, str, integers of 64 bits, floats, or a list or array of one of them",
    )


def _as_bytes(value: Any) -> list[bytes] | None:
    """The strings that a value is made of; `None` if it is made of something else."""
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
        items: list[Any] = array.ravel().tolist() if array.dtype.kind in "OSU" else []
    else:
        items = list(cast("list[Any]", value)) if isinstance(value, (list, tuple)) else [value]
    if not items or not all(isinstance(item, _STRINGS) for item in items):
        return None
    return [item.encode() if isinstance(item, str) else bytes(item) for item in items]


def _not_parsed(what: str, got: str) -> FormatError:
    return FormatError(
        f"A tf.train.Example cannot be parsed: {what}.",
        got=got,
        fix="describe the features as they are; parse_example(record) shows them",
    )


def _listed(found: Found) -> str:
    rows = [f"{name}: {_told(values)}" for name, values in list(found.items())[:20]]
    return ", ".join(rows) or "no features"


def _told(values: Values | None) -> str:
    if values is None:
        return "nothing"
    return f"{len(values):,} {'bytes' if isinstance(values, list) else values.dtype}"
