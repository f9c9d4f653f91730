"""A small real SavedModel as our exporter writes it: pictures in files, and tensors."""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from warm_python import warm_python

CLASSES = ["dark", "middle", "bright"]


def export(folder: Path, version: int = 1, *, size: int = 8, shift: float = 0.0) -> Path:
    """Write a model that tells dark pictures from bright ones, by their mean.

    Args:
        folder: Where its versions lie.
        size: Height and width of the `tensors` signature.
        shift: Is added to the logits of 'bright': versions differ by it.
    """
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = tf.Variable([[-8.0, 0.0, 8.0]])
            self.bias = tf.Variable([3.0, 2.0, -5.0 + shift])

        def probabilities(self, image: tf.Tensor) -> tf.Tensor:
            mean = tf.reduce_mean(tf.cast(image, tf.float32), [1, 2, 3], keepdims=False) / 255
            return tf.nn.softmax(mean[:, None] @ self.scale + self.bias)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "image_bytes")])
        def files(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
            def read(data: tf.Tensor) -> tf.Tensor:
                image = tf.io.decode_image(data, channels=3, expand_animations=False)
                image.set_shape([None, None, 3])
                return tf.image.resize(image, [size, size], "nearest")

            pictures = tf.map_fn(read, image_bytes, fn_output_signature=tf.uint8)
            probabilities = self.probabilities(pictures)
            names = tf.gather(tf.constant(CLASSES), tf.argmax(probabilities, 1))
            return {"classes": names, "probabilities": probabilities}

        @tf.function(input_signature=[tf.TensorSpec([None, size, size, 3], tf.uint8, "image")])
        def tensors(self, image: tf.Tensor) -> dict[str, tf.Tensor]:
            probabilities = self.probabilities(image)
            return {"class_ids": tf.argmax(probabilities, 1), "probabilities": probabilities}

        @tf.function(
            input_signature=[
                tf.TensorSpec([None, 2], tf.float32, "a"),
                tf.TensorSpec([None], tf.string, "b"),
            ]
        )
        def pair(self, a: tf.Tensor, b: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"half": a / 2, "same_bytes": b}

        @tf.function(input_signature=[tf.TensorSpec([], tf.int32, "n")])
        def whole(self, n: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"range": tf.range(n)}

    model = Model()
    path = folder / str(version)
    written = folder / f".{version}.part"
    signatures = {
        "serving_default": model.files,
        "tensors": model.tensors,
        "pair": model.pair,
        "whole": model.whole,
    }
    tf.saved_model.save(model, os.fspath(written), signatures)
    metadata = {"task": "classification", "class_names": CLASSES, "format": "saved_model"}
    (written / "towerpack.json").write_text(json.dumps(metadata))
    written.rename(path)
    return path


def probabilities(images: np.ndarray, shift: float = 0.0) -> np.ndarray:
    """What the model gives, computed by NumPy."""
    mean = images.astype(np.float64).mean((1, 2, 3)) / 255
    logits = mean[:, None] * [-8, 0, 8] + [3, 2, -5 + shift]
    powers = np.exp(logits)
    return powers / powers.sum(1, keepdims=True)


def png(width: int, height: int, value: int) -> bytes:
    """A picture of one grey."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = (b"\0" + bytes([value]) * 3 * width) * height
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in parts)


@contextlib.contextmanager
def serving(
    folder: Path, *options: str, program: Sequence[str] = ("-m", "towerpack")
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The URL and the process of a server of the model `folder`."""
    command = [*warm_python(), *program, "serve", str(folder), *options]
    with subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"at (http://\S+)/ ", line)
            assert found, line + process.communicate()[1]
            yield found[1], process
        finally:
            process.kill()
