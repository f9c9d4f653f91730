"""A graph reads picture files as the library does, or refuses them with the reason."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from encoded_pictures import ENCODINGS
from towerpack.dataflow.images import decode_image
from towerpack.ops.picture_files import picture_of


@pytest.fixture(scope="module")
def read() -> Callable[[bytes], tf.Tensor]:
    spec = [tf.TensorSpec([], tf.string)]
    return tf.function(picture_of, input_signature=spec, autograph=False)


@pytest.mark.parametrize("name", ENCODINGS)
def test_as_the_library_or_refused(read: Callable[[bytes], tf.Tensor], name: str) -> None:
    data, _, _, in_graphs = ENCODINGS[name]
    if not in_graphs:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"image: .*\. Save it as PNG"):
            read(data)
        return
    expected, found = decode_image(data), read(data).numpy()
    assert found.shape == expected.shape
    # Two ways to convert inks differ.
    apart = 2 if "four inks" in name else 0
    assert np.abs(found.astype(int) - expected).max() <= apart


@pytest.mark.parametrize(
    "name", ["PNG, rgb", "JPEG, 420", "GIF, plain", "WebP, lossy", "BMP, 24 bits"]
)
def test_parts_of_files_are_errors(read: Callable[[bytes], tf.Tensor], name: str) -> None:
    data = ENCODINGS[name].data
    for end in (0, 1, 4, 12, 30, 60, len(data) // 2):
        with pytest.raises(tf.errors.InvalidArgumentError):
            read(data[:end])
