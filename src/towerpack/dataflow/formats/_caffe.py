from __future__ import annotations

from typing import Any

import numpy as np

from towerpack._core.errors import FormatError
from towerpack.dataflow._user_files import PathLike, reading
from towerpack.dataflow.formats._lmdb import Keys, LMDBData, LMDBDataDecoder
from towerpack.dataflow.formats._protobuf import message_class
from towerpack.dataflow.stages._on_error import Limit, OnError


class CaffeLMDB(LMDBDataDecoder):
    """Source of images and labels in an LMDB database as Caffe's `convert_imageset` writes it.

    Datapoints are `[image, label]`: an array [height, width, channels] and an `int`. The channels
    have the stored order, which is BGR in Caffe. Encoded records (JPEG, PNG) are decoded. Images
    are uint8, or float32 if the record holds floats. Errors are the same as for `LMDBData`.

    Args:
        path, shuffle, keys, seed: See `LMDBData`.
        on_error, max_errors: See `MapData`, for records that are not images.
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
    """Decode a Caffe `Datum` to `[image, label]`.

    Args:
        key: Key of the record, for error messages.
        value: The serialized `Datum`.

    Raises:
        FormatError: The record is not a `Datum`, or its image is damaged.
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
            f"{name} must have as many values as its image size needs.",
            got=f"{len(flat):,} values",
            expected=f"{shape[0]} channels x {shape[1]} x {shape[2]}",
        )
    return [flat.reshape(shape).transpose(1, 2, 0).copy(), datum.label]
