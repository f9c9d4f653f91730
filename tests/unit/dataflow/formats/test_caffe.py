from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import lmdb
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from towerpack import DataFlowError, FormatError
from towerpack.dataflow.formats import CaffeLMDB, LMDBDataDecoder, decode_datum

IMAGE = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)


def message_type() -> Any:
    """`Datum` as Caffe's own description has it."""
    file = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package="caffe", syntax="proto2")
    message = file.message_type.add(name="Datum")
    kinds = {"channels": 5, "height": 5, "width": 5, "data": 12, "label": 5, "float_data": 2}
    for number, (name, kind) in enumerate({**kinds, "encoded": 8}.items(), 1):
        label = 3 if name == "float_data" else 1
        message.field.add(name=name, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("caffe.Datum"))


Datum = message_type()


def datum(img: np.ndarray[Any, Any], label: int) -> bytes:
    """As Caffe's `io.array_to_datum` does it."""
    height, width, channels = img.shape
    fields = {"channels": channels, "height": height, "width": width, "label": label}
    planes = img.transpose(2, 0, 1)
    if img.dtype == np.uint8:
        return Datum(data=planes.tobytes(), **fields).SerializeToString()
    return Datum(float_data=planes.ravel().tolist(), **fields).SerializeToString()


def test_records(tmp_path: Path) -> None:
    records = [datum(IMAGE, -1), b"\x0b", datum(IMAGE[:3], 1999)]
    with lmdb.open(str(tmp_path), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for index, record in enumerate(records):
            txn.put(f"{index:08d}_n/{index}.jpg".encode(), record)
    ds = CaffeLMDB(tmp_path, shuffle=False, on_error="skip")
    assert isinstance(ds, LMDBDataDecoder)
    iterator = iter(ds)
    found = list(iterator)
    np.testing.assert_equal(found, [[IMAGE, -1], [IMAGE[:3], 1999]])
    assert iterator.skipped == 1
    assert type(found[0][1]) is int and found[0][0].flags.c_contiguous
    with pytest.raises(DataFlowError, match=r"00000001_n/1\.jpg"):
        list(CaffeLMDB(tmp_path))


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_layouts(channels: int, dtype: type) -> None:
    img = np.arange(6 * 5 * channels).reshape(6, 5, channels).astype(dtype)
    found, label = decode_datum(b"k", datum(img, 3))
    assert found.dtype == dtype and found.flags.writeable and label == 3
    np.testing.assert_array_equal(found, img)


@pytest.mark.parametrize("channels", [1, 3])
def test_encoded_images_are_bgr(channels: int) -> None:
    img = IMAGE[..., :channels]
    coded = cv2.imencode(".png", img)[1].tobytes()
    for known in ({}, {"channels": channels}):
        record = Datum(data=coded, label=5, encoded=True, **known).SerializeToString()
        found, label = decode_datum(b"k", record)
        assert label == 5
        np.testing.assert_array_equal(found, img if known else np.broadcast_to(img, IMAGE.shape))


def test_records_that_are_no_images() -> None:
    wrong = [{}, {"channels": -1, "height": -1, "width": 1, "data": b"1"}]
    wrong += [{"channels": 1, "height": 1 << 30, "width": 1 << 30}]
    wrong += [{"data": b"no image", "encoded": True}]
    for record in (b"not a datum", *(Datum(**fields).SerializeToString() for fields in wrong)):
        with pytest.raises(FormatError, match="00000001"):
            decode_datum(b"00000001", record)
