"""Caffe's images: LMDB records that are `Datum` messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from towerpack._core.errors import FormatError
from towerpack.dataflow._user_files import PathLike, reading
from towerpack.dataflow.formats._lmdb import Keys, LMDBData, LMDBDataDecoder
from towerpack.dataflow.formats._protobuf import message_class
from towerpack.dataflow.stages._on_error import Limit, OnError


class CaffeLMDB(LMDBDataDecoder):
    """Images and labels from an LMDB database as Caffe's `convert_imageset` writes it.

    Datapoints are `[image, label]`: [height, width, channels], uint8, in the order of channels in
    which they are stored, which with Caffe is BGR; and an `int`. JPEGs and PNGs (`encoded` records)
    are decoded. Records of floats give float32.

    Arguments, contract and errors are those of `LMDBData`, and for a record that is no image
    `on_error` and `max_errors` those of `MapData`.
    """

    def __init__(
        self,
        path: PathLike,
        shuffle: bool = True,
        keys: Keys | None = None,
        *,
        seed: int | None = None,
        on_error: OnError = "raise",
        max_errors: Limit = None,
    ) -> None:
        records = LMDBData(path, shuffle, keys, seed=seed)
        super().__init__(records, decode_datum, on_error=on_error, max_errors=max_errors)


def decode_datum(key: bytes, value: bytes) -> list[Any]:
    """Image and label of the Caffe `Datum` in `value`; `key` is for messages.

    Raises:
        FormatError: It is none, or its image is damaged.
    """
    name = f"The record {key!r:.80}"
    with reading(name, "Caffe's Datum"):
        datum = message_class("Datum").FromString(value)
    if datum.encoded:
        from towerpack.dataflow.images import decode_image

        channels = 1 if datum.channels == 1 else 3
        return [decode_image(datum.data, rgb=False, channels=channels, name=name), datum.label]
    shape = (datum.channels, datum.height, datum.width)
    data: bytes = datum.data
    flat = np.frombuffer(data, np.uint8) if data else np.array(datum.float_data, np.float32)
    if min(shape) < 1 or shape[0] * shape[1] * shape[2] != len(flat):
        raise FormatError(
            f"{name} is no image: its size does not fit its content.",
            got=f"{len(flat):,} values",
            expected=f"{shape[0]} channels x {shape[1]} x {shape[2]}",
        )
    return [flat.reshape(shape).transpose(1, 2, 0).copy(), datum.label]
