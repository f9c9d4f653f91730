"""Our TFRecord files and examples beside TensorFlow's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from towerpack.dataflow.formats import TFRecordData, TFRecordWriter, encode_example, parse_example

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


def test_examples_go_both_ways() -> None:
    integers = [0, 1, 127, 128, 300, -1, (1 << 63) - 1, -(1 << 63)]
    floats, strings = [0.5, -2.5, np.inf], [b"", b"\xff\x00", b"x" * 300]
    features = {
        "b": tf.train.Feature(bytes_list=tf.train.BytesList(value=strings)),
        "e": tf.train.Feature(int64_list=tf.train.Int64List()),
        "f": tf.train.Feature(float_list=tf.train.FloatList(value=floats)),
        "i": tf.train.Feature(int64_list=tf.train.Int64List(value=integers)),
        "n": tf.train.Feature(),
    }
    record = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    found = parse_example(record)
    np.testing.assert_equal(found["i"], np.array(integers))
    np.testing.assert_equal(found["f"], np.array(floats, np.float32))
    assert found["b"] == strings and len(found["e"]) == len(found["n"]) == 0

    theirs = tf.train.Example.FromString(encode_example(found)).features.feature
    assert list(theirs["i"].int64_list.value) == integers
    assert list(theirs["f"].float_list.value) == floats
    assert list(theirs["b"].bytes_list.value) == strings
