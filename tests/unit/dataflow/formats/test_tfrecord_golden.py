"""Our TFRecord files and examples beside TensorFlow's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from towerpack.dataflow.formats import (
    FixedFeature,
    TFRecordData,
    TFRecordWriter,
    VariableFeature,
    encode_example,
    parse_example,
)

RECORDS = [b"", b"towerpack", bytes(range(256)) * 300, b"x"]
COMPRESSIONS = {None: "", "gzip": "GZIP", "zlib": "ZLIB"}


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_files_go_both_ways(tmp_path: Path, compression: Any) -> None:
    theirs, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")
    with tf.io.TFRecordWriter(theirs, COMPRESSIONS[compression]) as writer:
        for record in RECORDS:
            writer.write(record)
    assert list(TFRecordData(theirs)) == [[record] for record in RECORDS]
    with TFRecordWriter(ours, compression=compression) as writer:
        for record in RECORDS:
            writer.write(record)
    found = tf.data.TFRecordDataset(ours, COMPRESSIONS[compression]).as_numpy_iterator()
    assert list(found) == RECORDS
    if compression is None:
        assert Path(ours).read_bytes() == Path(theirs).read_bytes()


INTEGERS = [0, 1, 127, 128, 300, -1, (1 << 63) - 1, -(1 << 63)]


def test_examples_of_tensorflow_are_parsed() -> None:
    features = {
        "i": tf.train.Feature(int64_list=tf.train.Int64List(value=INTEGERS)),
        "f": tf.train.Feature(float_list=tf.train.FloatList(value=[0.1, -2.5, np.inf])),
        "b": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"", b"\xff\x00", b"x" * 300])),
        "e": tf.train.Feature(int64_list=tf.train.Int64List()),
        "n": tf.train.Feature(),
    }
    record = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    found = parse_example(record)
    np.testing.assert_equal(found.pop("i"), np.array(INTEGERS))
    np.testing.assert_equal(found.pop("f"), np.array([0.1, -2.5, np.inf], np.float32))
    assert found.pop("b") == [b"", b"\xff\x00", b"x" * 300]
    assert [len(value) for value in found.values()] == [0, 0]


def test_tensorflow_parses_our_examples() -> None:
    box = np.arange(4, dtype=np.float32).reshape(2, 2)
    record = encode_example({"i": INTEGERS, "box": box, "b": ["ä", b"\xff"], "none": []})
    found = tf.io.parse_single_example(
        record,
        {
            "i": tf.io.FixedLenFeature([len(INTEGERS)], tf.int64),
            "box": tf.io.FixedLenFeature([2, 2], tf.float32),
            "b": tf.io.VarLenFeature(tf.string),
            "none": tf.io.VarLenFeature(tf.int64),
        },
    )
    ours = parse_example(
        record,
        {
            "i": FixedFeature((len(INTEGERS),), np.int64),
            "box": FixedFeature((2, 2), np.float32),
            "b": VariableFeature(bytes),
            "none": VariableFeature(np.int64),
        },
    )
    np.testing.assert_equal(ours["i"], found["i"].numpy())
    np.testing.assert_equal(ours["box"], found["box"].numpy())
    assert ours["b"].tolist() == found["b"].values.numpy().tolist()
    assert len(ours["none"]) == len(found["none"].values) == 0
    theirs = tf.train.Example.FromString(record)
    assert list(theirs.features.feature["i"].int64_list.value) == INTEGERS
