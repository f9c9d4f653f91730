"""Files whose EXIF block turns the picture: the header, the decoder and the crops agree."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest

from scaling import scaled
from towerpack._core.errors import FormatError
from towerpack.dataflow.images import DecodeRandomCrop, decode_image, image_header
from towerpack.dataflow.images import _decode as decode
from towerpack.dataflow.images._crop import GoogleNetRandomCropAndResize
from towerpack.dataflow.images._decode import upright

cv2 = pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")
pillow = pytest.importorskip("PIL.Image")

FORMATS = ["PNG", "WEBP", "TIFF"]
LOSSLESS = {"WEBP": {"lossless": True}, "JPEG": {"quality": 98}}


def slope(height: int = 40, width: int = 60) -> np.ndarray:
    """A picture unlike its mirror images."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 4, y * 6, x * 2 + y * 3], 2).astype(np.uint8)


def saved(img: np.ndarray, kind: str, orientation: int) -> bytes:
    file = BytesIO()
    exif = pillow.Exif()
    exif[0x0112] = orientation
    how = {"tiffinfo": {0x0112: orientation}} if kind == "TIFF" else {"exif": exif}
    pillow.fromarray(img).save(file, kind, **how, **LOSSLESS.get(kind, {}))
    return file.getvalue()


def exif(orientation: int) -> bytes:
    return b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHIHHI", 0x0112, 3, 1, orientation, 0, 0)


def png_with(payload: bytes, before: bytes = b"IDAT") -> bytes:
    file = BytesIO()
    pillow.fromarray(slope()).save(file, "PNG")
    data = file.getvalue()
    chunk = b"eXIf" + payload
    chunk = struct.pack(">I", len(payload)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    at = data.index(before) - 4
    return data[:at] + chunk + data[at:]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", FORMATS)
def test_header_and_picture_agree(kind: str, orientation: int) -> None:
    data = saved(slope(), kind, orientation)
    header = image_header(data)
    assert (header.height, header.width, header.orientation) == (40, 60, orientation)
    img = decode_image(data)
    assert np.array_equal(img, upright(slope(), orientation))
    assert img.shape[:2] == header.upright_size
    assert decode_image(data, channels=1).shape[:2] == header.upright_size


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", FORMATS)
def test_random_crops(kind: str, orientation: int) -> None:
    data = saved(slope(), kind, orientation)
    plain = GoogleNetRandomCropAndResize((0.5, 1.0), target_shape=16)
    for seed in range(12):
        img = DecodeRandomCrop(16, (0.5, 1.0))(data, np.random.default_rng(seed))
        expected = plain.augment(upright(slope(), orientation), np.random.default_rng(seed))
        assert np.array_equal(img, expected)


def test_exif_block_wherever_it_is() -> None:
    expected = upright(slope(), 6)
    for payload in (exif(6), b"Exif\0\0" + exif(6)):
        for before in (b"IDAT", b"IEND"):
            data = png_with(payload, before)
            assert image_header(data).orientation == 6
            assert np.array_equal(decode_image(data), expected)
        webp = saved(slope(), "WEBP", 6)
        at = webp.index(b"EXIF")
        webp = webp[: at + 4] + struct.pack("<I", len(payload)) + payload
        webp = webp[:4] + struct.pack("<I", len(webp) - 8) + webp[8:]
        assert image_header(webp).orientation == 6
        assert np.array_equal(decode_image(webp), expected)


def test_bytes_that_only_look_like_an_exif_block() -> None:
    inside = png_with(b"").replace(b"eXIf", b"tEXt", 1)
    text = struct.pack(">I", 26) + b"eXIf" + exif(6)
    chunk = b"tEXt" + text
    chunk = struct.pack(">I", len(text)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    at = inside.index(b"IDAT") - 4
    assert image_header(inside[:at] + chunk + inside[at:]).orientation == 1
    behind = saved(slope(), "PNG", 1) + text + bytes(4)
    assert image_header(behind).orientation == 1
    unannounced = bytearray(saved(slope(), "WEBP", 6))
    unannounced[20] &= ~8  # the flag that there is one: all readers go by it
    assert image_header(unannounced).orientation == 1
    assert decode_image(unannounced).shape == (40, 60, 3)


@pytest.mark.parametrize("payload", [b"", b"X", b"II*\0", exif(9), exif(0), exif(6)[:-9]])
def test_damaged_exif_is_upright(payload: bytes) -> None:
    data = png_with(payload)
    assert image_header(data).orientation == 1
    assert np.array_equal(decode_image(data), slope())


@pytest.mark.parametrize("orientation", [0, 9, 60_000])
def test_tiffs_have_only_eight_orientations(orientation: int) -> None:
    data = saved(slope(), "TIFF", 3)
    entry = data.index(struct.pack("<HHIH", 0x0112, 3, 1, 3))
    data = data[: entry + 8] + struct.pack("<H", orientation) + data[entry + 10 :]
    assert image_header(data).upright_size == decode_image(data).shape[:2] == (40, 60)


def test_damaged_files_are_an_error_or_a_crop() -> None:
    crop = DecodeRandomCrop(16, (0.5, 1.0), max_pixels=10**6)
    for kind in FORMATS:
        data = saved(slope(), kind, 6)
        places = [*range(min(80, len(data)))]
        for mark in (b"eXIf", b"EXIF", struct.pack("<HH", 0x0112, 3)):
            if mark in data:
                places += range(data.index(mark) - 12, min(data.index(mark) + 40, len(data)))
        good = 0
        for seed in range(scaled(10_000, at_least=400)):
            rng = np.random.default_rng(seed)
            damaged = bytearray(data)
            for at in rng.choice(places, rng.integers(1, 4)):
                damaged[at] = rng.integers(256)
            try:
                good += crop(bytes(damaged), rng).shape == (16, 16, 3)
            except FormatError:
                continue
        assert good > 5


@pytest.mark.parametrize("orientation", range(1, 9))
def test_reduced_crops_show_the_right_place(orientation: int) -> None:
    """Of a slope, the mean says where it was seen."""
    size = 1001  # leaves one pixel in the last block of 8, 4 and 2
    y, x = np.mgrid[:size, :size] / (size - 1) * 255
    channels = [x, y, (x + y) / 2]
    data = saved(np.round(np.stack(channels, 2)).astype(np.uint8), "JPEG", orientation)
    offsets: list[np.ndarray] = []
    for seed in range(15):
        crop = DecodeRandomCrop(60, (0.3, 1.0), interp="area")
        img = crop(data, np.random.default_rng(seed))
        full = replace(crop, reduce=False)(data, np.random.default_rng(seed))
        assert not np.array_equal(img, full)
        offsets.append((img.astype(float) - full).mean((0, 1)) / 255 * size)
    assert np.abs(np.mean(offsets, 0)).max() < 1.5  # pixels of the file
    assert np.abs(offsets).max() < 5


@pytest.mark.parametrize("orientation", range(1, 9))
def test_crops_of_jpegs_that_opencv_reads(
    orientation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = saved(slope(), "JPEG", orientation)
    monkeypatch.setattr(decode, "_jpeg", lambda *_: None)
    for seed in range(12):  # OpenCV does not reduce
        crop = DecodeRandomCrop(8, (0.5, 1.0), interp="area")
        img = crop(data, np.random.default_rng(seed))
        plain = replace(crop, reduce=False)(data, np.random.default_rng(seed))
        assert np.array_equal(img, plain)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", [*FORMATS, "JPEG"])
def test_pictures_that_are_left_lying(kind: str, orientation: int) -> None:
    data = saved(slope(), kind, orientation)
    lying = decode_image(saved(slope(), kind, 1))
    assert np.array_equal(decode_image(data, orient=False), lying)
    assert decode_image(data, orient=False, channels=1).shape == (40, 60, 1)
    part = decode_image(data, orient=False, part=(3, 5, 30, 52))
    assert np.array_equal(part, lying[3:33, 5:57])
    for channels in (None, 4):
        img = decode_image(data, channels=channels)[:, :, :3]
        # OpenCV's rule for what keeps its channels.
        assert np.array_equal(img, upright(lying, orientation) if kind == "JPEG" else lying)
        assert np.array_equal(decode_image(data, channels=channels, orient=False)[:, :, :3], lying)


def tiff_with(data: bytes, orientation: int) -> bytes:
    """The file with one more entry in its directory, which is moved to the end."""
    at = int.from_bytes(data[4:8], "little")
    count = int.from_bytes(data[at : at + 2], "little")
    entries = [data[at + 2 + 12 * i : at + 14 + 12 * i] for i in range(count)]
    entries.append(struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0))
    entries.sort(key=lambda entry: int.from_bytes(entry[:2], "little"))
    directory = struct.pack("<H", count + 1) + b"".join(entries) + bytes(4)
    return data[:4] + struct.pack("<I", len(data)) + data[8:] + directory


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "float64", "int32"])
@pytest.mark.parametrize("channels", [(), (3,)])
def test_deep_tiffs_that_are_left_lying(dtype: str, channels: tuple[int, ...]) -> None:
    img = np.random.default_rng(0).integers(0, 256, (20, 30, *channels)).astype(dtype)
    ok, data = cv2.imencode(".tiff", img)
    assert ok
    for orientation in range(1, 9):
        turned = tiff_with(data.tobytes(), orientation)
        assert image_header(turned).orientation == orientation
        lying = decode_image(turned, channels=None, rgb=False)
        assert np.array_equal(lying, img.reshape(20, 30, -1))


def test_min_size_is_that_of_the_result() -> None:
    data = saved(slope(100, 400), "JPEG", 6)
    assert decode_image(data, min_size=(200, 50)).shape == (200, 50, 3)
    assert decode_image(data, min_size=(50, 200), orient=False).shape == (50, 200, 3)
    assert decode_image(data, min_size=(100, 50), orient=False).shape == (100, 400, 3)
