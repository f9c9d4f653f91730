"""Parts of pictures: the pixels that decoding the whole and cutting would give, for less."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling import scaled
from towerpack._core.errors import ConfigError, FormatError
from towerpack.dataflow.images import (
    DecodeRandomCrop,
    Flip,
    decode_image,
    encode_jpeg,
    image_header,
)
from towerpack.dataflow.images import _decode as decode
from towerpack.dataflow.images._flip import TransposeTransform

pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")
pillow = pytest.importorskip("PIL.Image")


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Neighbouring pixels differ, so that a wrong one shows."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def saved(img: np.ndarray, orientation: int = 1, **options: Any) -> bytes:
    file = BytesIO()
    exif = pillow.Exif()
    exif[0x0112] = orientation
    pillow.fromarray(img).save(file, "JPEG", exif=exif.tobytes(), **options)
    return file.getvalue()


PICTURE = encode_jpeg(noise(200, 300), quality=90)
PART = (20, 130, 90, 100)


@pytest.fixture
def heights(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each picture had that libjpeg-turbo decoded."""
    found: list[int] = []
    library = decode._simplejpeg()

    class Spy:
        @staticmethod
        def decode_jpeg(*args: Any, buffer: np.ndarray, **options: Any) -> Any:
            found.append(len(buffer))
            return library.decode_jpeg(*args, buffer=buffer, **options)

    monkeypatch.setattr(decode, "_simplejpeg", lambda: Spy)
    return found


@st.composite
def parts(draw: st.DrawFn) -> tuple[bytes, tuple[int, int, int, int], dict[str, Any]]:
    """A file, a part of it when upright, and how to decode it."""
    height, width = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    orientation = draw(st.integers(1, 8))
    options: dict[str, Any] = draw(
        st.sampled_from([{}, {}, {"progressive": True}, {"restart_marker_blocks": 2}])
    )
    kind = draw(st.sampled_from([0, 1, 2, "4:1:1", "rgb", "grey"]))
    img = noise(height, width, draw(st.integers(0, 9)))
    if kind == "rgb":
        data = saved(img, orientation, keep_rgb=True, quality=90, **options)
    elif kind == "grey":
        data = saved(img[:, :, 0], orientation, quality=90, **options)
    else:
        data = saved(img, orientation, subsampling=kind, quality=90, **options)
    how: dict[str, Any] = {
        "rgb": draw(st.booleans()),
        "orient": draw(st.booleans()),
        "strict": draw(st.booleans()),
    }
    how["channels"] = draw(st.sampled_from([3, 3, 3, 1, 4, None]))
    if how["orient"] and orientation > 4:
        height, width = width, height
    y, x = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    part = (y, x, draw(st.integers(1, height - y)), draw(st.integers(1, width - x)))
    return data, part, how


@settings(max_examples=scaled(4000, at_least=200), deadline=None)
@given(parts())
def test_a_part_is_what_cutting_gives(case: Any) -> None:
    data, (y, x, height, width), how = case
    whole = decode_image(data, **how)
    part = decode_image(data, part=(y, x, height, width), **how)
    assert part.flags.c_contiguous
    assert np.array_equal(part, whole[y : y + height, x : x + width])


def test_only_the_rows_that_are_needed_are_decoded(heights: list[int]) -> None:
    whole = decode_image(PICTURE)[20:110, 130:230]
    assert np.array_equal(decode_image(PICTURE, part=PART, strict=False), whole)
    assert heights == [200, 112]
    assert np.array_equal(decode_image(PICTURE, part=(20, 130, 91, 100), strict=False)[:90], whole)
    assert heights.pop() == 128  # row 111 takes colours from the row below
    out = np.zeros((90, 100, 3), np.uint8)
    assert decode_image(PICTURE, part=PART, strict=False, out=out) is out
    assert np.array_equal(out, whole)


def test_damage_below_the_part(heights: list[int]) -> None:
    cut = PICTURE[: len(PICTURE) * 7 // 10]
    whole = decode_image(PICTURE)[20:110, 130:230]
    assert np.array_equal(decode_image(cut, part=PART, strict=False), whole)
    with pytest.raises(FormatError, match="damaged JPEG"):
        decode_image(cut, part=PART)
    with pytest.raises(FormatError):
        decode_image(PICTURE[:300], part=PART, strict=False)


def test_turned_pictures_need_other_rows(heights: list[int]) -> None:
    data = saved(noise(200, 300), 3, quality=90)  # upside down: the last rows are stored first
    img = decode_image(data, part=(170, 0, 30, 300), strict=False)
    assert heights == [32]
    assert np.array_equal(img, decode_image(data)[170:])


def test_arguments() -> None:
    for part in [(-1, 0, 5, 5), (0, 0, 201, 5), (0, 296, 5, 5), (0, 0, 0, 5), (0, 0, 5, -5)]:
        for strict in (True, False):
            with pytest.raises(ConfigError, match="does not lie in an image of 200 x 300"):
                decode_image(PICTURE, part=part, strict=strict)
    with pytest.raises(ConfigError, match="without min_size"):
        decode_image(PICTURE, part=PART, min_size=10)
    with pytest.raises(ConfigError, match="top, left, height, width"):
        decode_image(PICTURE, part=(1, 2, 3))


def test_a_part_of_a_picture_that_opencv_leaves_lying() -> None:
    file = BytesIO()
    pillow.fromarray(noise(20, 30)).save(file, "TIFF", tiffinfo={0x0112: 6})
    for channels in (3, None, 4):
        whole = decode_image(file.getvalue(), channels=channels)
        height, width = whole.shape[:2]
        part = decode_image(file.getvalue(), channels=channels, part=(2, 1, height - 2, width - 1))
        assert np.array_equal(part, whole[2:, 1:])
        with pytest.raises(ConfigError, match=f"of {height} x {width} pixels"):
            decode_image(file.getvalue(), channels=channels, part=(2, 1, height - 1, width - 1))


def test_random_crops(heights: list[int]) -> None:
    for seed in range(30):
        one, other = (
            DecodeRandomCrop(64, strict=strict, reduce=False)(PICTURE, np.random.default_rng(seed))
            for strict in (True, False)
        )
        assert np.array_equal(one, other)
    assert set(heights[::2]) == {200} and min(heights) < 130


@pytest.mark.parametrize("where", ["frame", "anywhere"])
def test_damaged_files_are_an_error_or_a_picture(where: str) -> None:
    data = saved(noise(60, 90), subsampling=2, quality=80)
    frame = image_header(data).frame
    good = 0
    for seed in range(scaled(20_000, at_least=1000)):
        rng = np.random.default_rng(seed)
        damaged = bytearray(data)
        limits = (frame, frame + 17) if where == "frame" else (0, len(data))
        for at in rng.integers(*limits, rng.integers(1, 5)):
            damaged[at] ^= 1 << int(rng.integers(8))
        try:
            img = decode_image(
                bytes(damaged), part=(5, 3, 20, 30), strict=False, max_pixels=10**6, orient=False
            )
        except (FormatError, ConfigError):
            continue
        assert img.shape == (20, 30, 3)
        good += 1
    assert good > 20


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("channels", [None, 1, 2, 3, 4, 5, 9])
def test_turning_is_what_numpy_gives(dtype: Any, channels: int | None) -> None:
    shape = (13, 21) if channels is None else (13, 21, channels)
    img = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    turned = TransposeTransform().apply_image(img)
    assert turned.dtype == dtype and np.array_equal(turned, img.swapaxes(0, 1))
    for options, expected in [({"horiz": True}, img[:, ::-1]), ({"vert": True}, img[::-1])]:
        assert np.array_equal(Flip(prob=1, **options).augment(img), expected)
