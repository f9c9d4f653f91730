"""How many scans of a JPEG are read: a guard that good files do not run into."""

from __future__ import annotations

import contextlib
import time
from io import BytesIO
from typing import Any

import numpy as np
import pytest

from scaling import scaled
from towerpack._core.errors import FormatError
from towerpack.dataflow.images import DecodeRandomCrop, decode_image, encode_jpeg, image_header
from towerpack.dataflow.images._decode import count_scans

pytest.importorskip("cv2")
simplejpeg = pytest.importorskip("simplejpeg")
pillow = pytest.importorskip("PIL.Image")

MOVIE = 300 * b"\xff\xda" + bytes(1000)


def slope(height: int = 40, width: int = 60) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 4, y * 6, x * 2 + y * 3], 2).astype(np.uint8)


def saved(**options: Any) -> bytes:
    file = BytesIO()
    pillow.fromarray(slope()).save(file, "JPEG", **options)
    return file.getvalue()


PROGRESSIVE = saved(progressive=True)


def scans(data: bytes) -> int:
    return count_scans(data, image_header(data).frame)


def starts(data: bytes) -> list[int]:
    """Where the scans of a file begin in which nothing else looks like one."""
    return [at for at in range(len(data)) if data.startswith(b"\xff\xda", at)]


def test_what_follows_the_picture_does_not_count() -> None:
    for data in (PROGRESSIVE, encode_jpeg(np.zeros((2100, 2100, 3), np.uint8))):
        expected = decode_image(data)
        assert np.array_equal(decode_image(data + MOVIE), expected)
        assert np.array_equal(decode_image(data + b"\xff\xd9" + MOVIE), expected)
        assert DecodeRandomCrop(8)(data + MOVIE, np.random.default_rng(0)).shape == (8, 8, 3)


def test_nor_what_is_in_a_segment() -> None:
    scan = starts(PROGRESSIVE)[2]
    hidden = b"\xff\xfe" + (len(MOVIE) + 2).to_bytes(2, "big") + MOVIE
    data = PROGRESSIVE[:scan] + hidden + PROGRESSIVE[scan:]
    assert scans(data) == scans(PROGRESSIVE) == len(starts(PROGRESSIVE)) == 10
    assert np.array_equal(decode_image(data), decode_image(PROGRESSIVE))


@pytest.mark.parametrize(
    "between",
    [
        b"",
        b"\xff\xd0",  # restart markers end nothing
        b"\xff\0\xff\xd7\xff\0",
        b"\xff\xff\xff",
        b"\xff\x01",
        b"rubbish",
        b"\xff\xfe\0\x04\xff\xd9",  # an end, but in a comment
        b"\xff\xe1\0\x06\xff\xd9\xff\xd9",
        b"\xff\xfe\0\0",
    ],
)
def test_bombs(between: bytes) -> None:
    scan = starts(PROGRESSIVE)[0]
    bomb = PROGRESSIVE[:scan] + 200 * (PROGRESSIVE[scan : scan + 14] + between)
    for data in (bomb, bomb + PROGRESSIVE[scan:], bomb + b"\xff\xd9"):
        assert scans(data) >= 200
        with pytest.raises(FormatError, match=r"is a JPEG of 2\d\d scans"):
            decode_image(data, strict=False)


def test_bombs_for_opencv() -> None:
    scan = starts(PROGRESSIVE)[0]
    bomb = bytearray(PROGRESSIVE[:scan] + 200 * PROGRESSIVE[scan : scan + 14])
    bomb[image_header(PROGRESSIVE).frame - 1] = 0xCA  # arithmetic coding
    assert not image_header(bomb).ordinary
    with pytest.raises(FormatError, match=r"is a JPEG of 2\d\d scans"):
        decode_image(bomb)


def read(data: bytes) -> np.ndarray:
    """What libjpeg makes of it: zeros if that is nothing."""
    img = np.zeros_like(slope())
    with contextlib.suppress(ValueError):
        simplejpeg.decode_jpeg(data, strict=False, buffer=img)
    return img


def test_scans_that_libjpeg_reads_are_counted() -> None:
    """Whatever stands before them: `alphabet` is what has a meaning."""
    alphabet = [b"\xff", b"\xff", b"\0", b"\x01", b"\x02", b"\xd9", b"\xd8", b"\xd0", b"\xd7"]
    alphabet += [b"\xda", b"\xc4", b"\xdb", b"\xdd", b"\xe1", b"\xfe", b"\x04", b"x"]
    places = starts(PROGRESSIVE)
    read_on = stopped = 0
    for seed in range(scaled(40_000, at_least=2000)):
        rng = np.random.default_rng(seed)
        number = int(rng.integers(1, len(places)))
        at = places[number] - int(rng.integers(0, 3)) * int(rng.integers(0, 2))
        inserted = b"".join(alphabet[i] for i in rng.integers(0, len(alphabet), rng.integers(9)))
        data = PROGRESSIVE[:at] + inserted + PROGRESSIVE[at:]
        whole, cut = read(data), read(PROGRESSIVE[:at] + inserted + b"\xff\xd9")
        if not whole.any() or not cut.any() or np.array_equal(whole, cut):
            stopped += 1
            continue
        read_on += 1
        assert scans(data) > number, (seed, inserted)
    assert min(read_on, stopped) > 100


def test_hostile_bytes_take_no_time() -> None:
    start = PROGRESSIVE[: starts(PROGRESSIVE)[0] + 14]
    for filling in (b"\xff\0", b"\xff", b"\xff\xd0", b"\xff\xfe\0\x02", b"\xff\xda\0\x02"):
        data = start + filling * (2_000_000 // len(filling))
        began = time.process_time()
        scans(data)
        assert time.process_time() - began < 2  # 0.2 s at most, here
