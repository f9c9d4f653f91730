"""The protocol buffers of TensorFlow's and Caffe's records, described without their packages."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from towerpack._core.extras import require

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
        label = 3 if text.startswith("*") else 1
        field = message.field.add(name=name, number=number, label=label)
        field.type = _TYPES.get(kind, _MESSAGE)
        if kind not in _TYPES:
            field.type_name = f".towerpack.{kind}"
