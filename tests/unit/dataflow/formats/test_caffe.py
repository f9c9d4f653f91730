from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import lmdb
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

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


def database(path: Path, records: list[bytes]) -> Path:
    path.mkdir()
    env = lmdb.open(str(path), map_size=1 << 26)
    with env.begin(write=True) as txn:
        for index, record in enumerate(records):
            txn.put(f"{index:08d}_n/{index}.jpg".encode(), record)
    env.close()
    return path


def images(count: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, 256, (6 + i % 3, 8, 3)).astype(np.uint8) for i in range(count)]


def test_images_and_labels(tmp_path: Path) -> None:
    expected = [[img, i * 1000 - 1] for i, img in enumerate(images(9))]
    path = database(tmp_path / "train_lmdb", [datum(*dp) for dp in expected])
    np.testing.assert_equal(list(CaffeLMDB(path, shuffle=False)), expected)
    ds = CaffeLMDB(path)
    assert isinstance(ds, LMDBDataDecoder) and sorted(dp[1] for dp in ds) == [
        label for _, label in expected
    ]
    assert str(ds) == "LMDBData(train_lmdb/data.mdb) > CaffeLMDB(decode_datum)"
    first = next(iter(CaffeLMDB(path, False)))
    assert type(first[1]) is int and first[0].flags.c_contiguous
    first[0][:] = 0  # it is the reader's own


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_layouts(channels: int, dtype: type) -> None:
    img = np.arange(6 * 5 * channels).reshape(6, 5, channels).astype(dtype)
    found, label = decode_datum(b"k", datum(img, 3))
    assert found.dtype == dtype and found.flags.writeable and label == 3
    np.testing.assert_array_equal(found, img)


def test_floats_packed_and_mixed_with_other_fields() -> None:
    packed = b"\x32\x08" + np.array([1, 2], "<f4").tobytes()
    single = [b"\x35" + np.array([i], "<f4").tobytes() for i in (3, 4)]
    sizes = b"\x08\x01\x10\x04\x18\x01"
    found, label = decode_datum(b"k", packed + single[0] + sizes + single[1] + b"\x28\x07")
    assert found.ravel().tolist() == [1, 2, 3, 4] and label == 7


@pytest.mark.parametrize("channels", [1, 3])
def test_encoded_images(channels: int) -> None:
    img = IMAGE[..., :channels]
    for extension in (".png", ".bmp"):
        _, coded = cv2.imencode(extension, img)
        for known in ({}, {"channels": channels}):
            record = Datum(data=coded.tobytes(), label=5, encoded=True, **known)
            found, label = decode_datum(b"k", record.SerializeToString())
            expected = img if known else np.broadcast_to(img, IMAGE.shape)
            np.testing.assert_array_equal(found, expected)
            assert label == 5


def test_jpegs_are_bgr() -> None:
    blue = np.zeros((16, 16, 3), np.uint8)
    blue[..., 0] = 255
    _, coded = cv2.imencode(".jpg", blue)
    found, _ = decode_datum(b"k", Datum(data=coded.tobytes(), encoded=True).SerializeToString())
    assert np.abs(found.astype(int) - blue).max() < 8


@pytest.mark.parametrize(
    "record",
    [
        b"",
        Datum(label=3).SerializeToString(),
        Datum(channels=3, height=2, width=2, data=b"1").SerializeToString(),
        Datum(channels=-1, height=-1, width=1, data=b"1").SerializeToString(),
        Datum(channels=1, height=1 << 30, width=1 << 30).SerializeToString(),
        Datum(data=b"no image", encoded=True).SerializeToString(),
        b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"not a datum",
    ],
)
def test_records_that_are_no_images(record: bytes) -> None:
    with pytest.raises(FormatError, match="00000001"):
        decode_datum(b"00000001", record)


def test_fields_of_newer_versions_are_left_out() -> None:
    extra = b"\x58\x01" + b"\x62\x02ab" + b"\x6d\0\0\0\0" + b"\x71" + bytes(8)
    found, label = decode_datum(b"k", extra + datum(IMAGE, 2) + extra)
    assert label == 2
    np.testing.assert_array_equal(found, IMAGE)


@given(st.data())
def test_damaged_records(data: st.DataObject) -> None:
    record = bytearray(datum(IMAGE.astype(np.float32) if data.draw(st.booleans()) else IMAGE, 300))
    for _ in range(data.draw(st.integers(1, 4))):
        record[data.draw(st.integers(0, 24))] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(record), record[: data.draw(st.integers(0, len(record)))]):
        try:
            img, label = decode_datum(b"k", bytes(damaged))
        except FormatError:
            continue
        assert img.ndim == 3 and isinstance(label, int)


def test_bad_records_are_named_or_skipped(tmp_path: Path) -> None:
    path = database(tmp_path / "d", [datum(IMAGE, 0), b"\x0b", datum(IMAGE, 2)])
    with pytest.raises(DataFlowError, match=r"00000001_n/1\.jpg"):
        list(CaffeLMDB(path, shuffle=False))
    iterator = iter(CaffeLMDB(path, shuffle=False, on_error="skip"))
    assert [label for _, label in iterator] == [0, 2] and iterator.skipped == 1
