"""One picture in many encodings, by Pillow, tifffile, OpenCV and by hand, with expected pixels.

The expected pixels are computed from the arrays that the files were made of, never by a decoder.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from picture_files import png_chunk

cv2 = pytest.importorskip("cv2")
tifffile = pytest.importorskip("tifffile")

HEIGHT, WIDTH = 23, 37
Y, X = np.mgrid[:HEIGHT, :WIDTH]
RGB = (np.stack([X / WIDTH, Y / HEIGHT, (X + 2 * Y) / 83], 2) * 220 + 20).astype(np.uint8)
GRAY = ((X * 3 + Y * 4) % 256).astype(np.uint8)
ALPHA = ((X * 7 + Y * 5) % 256).astype(np.uint8)
ALPHA[3:9, 4:12], ALPHA[12:, 20:] = 0, 255
RGBA = np.dstack([RGB, ALPHA])
RGB16 = RGB.astype(np.uint16) * 256 + RGB[..., ::-1]
GRAY16 = GRAY.astype(np.uint16) * 256 + GRAY[::-1]
ALPHA16 = ALPHA.astype(np.uint16) * 257
RGBA16 = np.dstack([RGB16, ALPHA16])
PALETTE = np.random.default_rng(5).integers(0, 256, (256, 3), dtype=np.uint8)
INKS = np.dstack([RGB // 2, X * 2]).astype(np.uint8)
OF_INKS = (255.0 - INKS[..., :3]) * (255.0 - INKS[..., 3:]) / 255


class Encoding(NamedTuple):
    """A file, its pixels, how far a decoder may be from them, and whether graphs decode it."""

    data: bytes
    expected: np.ndarray
    within: int = 0
    in_graphs: bool = True


def gray(values: np.ndarray) -> np.ndarray:
    """Gray values as three channels of 8 bits; deeper ones are scaled down."""
    values = values / 257 if values.dtype == np.uint16 else values
    return np.repeat(values[..., None], 3, 2)


def pil(pixels: Any, kind: str, mode: str | None = None, **options: Any) -> bytes:
    picture = pixels
    if isinstance(pixels, np.ndarray):
        picture = Image.fromarray(pixels) if mode is None else Image.fromarray(pixels, mode)
    file = BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def with_palette(indices: np.ndarray, colors: int) -> Image.Image:
    picture = Image.fromarray(indices.astype(np.uint8))
    picture.putpalette(PALETTE[:colors].tobytes())
    return picture


def tiff(pixels: np.ndarray, photometric: str = "rgb", **options: Any) -> bytes:
    file = BytesIO()
    tifffile.imwrite(file, pixels, photometric=photometric, **options)
    return file.getvalue()


def exif(orientation: int, mark: bytes = b"") -> bytes:
    entry = struct.pack("<HHIHHI", 0x0112, 3, 1, orientation, 0, 0)
    return mark + b"II*\0\x08\0\0\0\x01\0" + entry


def turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """What the pixels of an upright picture are that is stored with an orientation."""
    pixels = pixels.swapaxes(0, 1) if orientation > 4 else pixels
    pixels = pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels
    return pixels[::-1] if orientation in (3, 4, 7, 8) else pixels


def packed(row: np.ndarray, depth: int) -> bytes:
    """Values of a row of 1, 2, 4, 8 or 16 bits, the first in the highest bits."""
    if depth == 16:
        return row.astype(">u2").tobytes()
    bits = row.reshape(-1, 1) >> np.arange(depth)[::-1] & 1
    return np.packbits(bits.astype(np.uint8)).tobytes()


def png(
    pixels: np.ndarray,
    depth: int,
    color: int,
    before: Sequence[tuple[bytes, bytes]] = (),
    after: Sequence[tuple[bytes, bytes]] = (),
    *,
    interlaced: bool = False,
) -> bytes:
    """A PNG file of any depth, kind of color and chunks."""
    adam7 = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2)]
    passes = [*adam7, (1, 0, 2, 1)] if interlaced else [(0, 0, 1, 1)]
    parts = [pixels[top::down, left::along] for top, left, down, along in passes]
    rows = b"".join(b"\0" + packed(row, depth) for part in parts for row in part)
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, color, 0, 0, interlaced)
    chunks = [(b"IHDR", header), *before, (b"IDAT", zlib.compress(rows)), *after, (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)


def bmp(
    rows: Sequence[bytes], bits: int, colors: int = 0, packing: int = 0, masks: Any = ()
) -> bytes:
    """A BMP file of rows from the bottom up."""
    palette = b"".join(bytes([*color[::-1], 0]) for color in PALETTE[:colors].tolist())
    data = b"".join(row + bytes(-len(row) % 4) for row in rows) if packing != 1 else b"".join(rows)
    sizes = struct.pack(
        "<IiiHHIIiiII", 40, WIDTH, HEIGHT, 1, bits, packing, len(data), 0, 0, colors, 0
    )
    header = sizes + struct.pack(f"<{len(masks)}I", *masks) + palette
    start = 14 + len(header)
    return b"BM" + struct.pack("<IHHI", start + len(data), 0, 0, start) + header + data


def pngs() -> dict[str, Encoding]:
    found: dict[str, Encoding] = {}
    for depth in (1, 2, 4, 8):
        levels, indices = GRAY >> (8 - depth), GRAY % 2**depth if depth < 8 else GRAY
        shades = gray(levels * (255 // (2**depth - 1)))
        plte = (b"PLTE", PALETTE[: 2**depth].tobytes())
        clear = (b"tRNS", b"\0\x80")
        found[f"gray {depth}"] = Encoding(png(levels, depth, 0), shades)
        found[f"gray {depth} with a clear level"] = Encoding(
            png(levels, depth, 0, [(b"tRNS", b"\0\1")]), shades
        )
        found[f"palette {depth}"] = Encoding(png(indices, depth, 3, [plte]), PALETTE[indices])
        found[f"palette {depth} with transparency"] = Encoding(
            png(indices, depth, 3, [plte, clear]), PALETTE[indices]
        )
    found |= {
        "gray 16": Encoding(png(GRAY16, 16, 0), gray(GRAY16), 1),
        "gray and alpha": Encoding(png(np.dstack([GRAY, ALPHA]), 8, 4), gray(GRAY)),
        "gray 16 and alpha": Encoding(png(np.dstack([GRAY16, ALPHA16]), 16, 4), gray(GRAY16), 1),
        "rgb": Encoding(png(RGB, 8, 2), RGB),
        "rgb 16": Encoding(png(RGB16, 16, 2), RGB16 / 257, 1),
        "rgb with a clear color": Encoding(
            png(RGB, 8, 2, [(b"tRNS", struct.pack(">3H", *RGB[0, 0].tolist()))]), RGB
        ),
        "rgba": Encoding(png(RGBA, 8, 6), RGB),
        "rgba 16": Encoding(png(RGBA16, 16, 6), RGB16 / 257, 1),
        "rgba with a background": Encoding(
            png(RGBA, 8, 6, [(b"bKGD", struct.pack(">3H", 9, 200, 30))]), RGB
        ),
        "rgb with gamma": Encoding(png(RGB, 8, 2, [(b"gAMA", struct.pack(">I", 100_000))]), RGB),
        "rgba interlaced": Encoding(png(RGBA, 8, 6, interlaced=True), RGB),
        "turned, block first": Encoding(png(RGB, 8, 2, [(b"eXIf", exif(6))]), turned(RGB, 6)),
        "turned, block last": Encoding(png(RGBA, 8, 6, (), [(b"eXIf", exif(5))]), turned(RGB, 5)),
        "turned, block with a mark": Encoding(
            png(RGB, 8, 2, [(b"eXIf", exif(8, b"Exif\0\0"))]), turned(RGB, 8)
        ),
        "animated": Encoding(pil(RGB, "PNG", save_all=True, append_images=frames(RGB)), RGB),
        "animated rgba": Encoding(pil(RGBA, "PNG", save_all=True, append_images=frames(RGBA)), RGB),
    }
    return {f"PNG, {name}": encoding for name, encoding in found.items()}


def frames(first: np.ndarray) -> list[Image.Image]:
    """What follows a frame in an animation."""
    return [Image.fromarray(np.ascontiguousarray(first[::-1]))]


def bmps() -> dict[str, Encoding]:
    bgra, few = RGBA[..., [2, 1, 0, 3]], GRAY % 16
    high = RGB.astype(np.uint16) >> 3
    rgb555 = (high[..., 0] << 10 | high[..., 1] << 5 | high[..., 2]).astype("<u2")
    rgb565 = (high[..., 0] << 11 | high[..., 1] << 6 | high[..., 2]).astype("<u2")
    runs = [b"".join(bytes([1, i]) for i in row) + b"\0\0" for row in few[::-1].tolist()]
    found = {
        "24 bits": Encoding(pil(RGB, "BMP"), RGB),
        "24 bits by OpenCV": Encoding(cv2.imencode(".bmp", RGB[..., ::-1])[1].tobytes(), RGB),
        "32 bits": Encoding(pil(RGBA, "BMP"), RGB),
        "32 bits with alpha": Encoding(bmp([r.tobytes() for r in bgra[::-1]], 32), RGB),
        "32 bits with masks": Encoding(cv2.imencode(".bmp", bgra)[1].tobytes(), RGB, 0, False),
        "gray": Encoding(pil(GRAY, "BMP"), gray(GRAY), 0, False),
        "palette 8": Encoding(pil(with_palette(GRAY, 256), "BMP"), PALETTE[GRAY], 0, False),
        "palette 4": Encoding(
            bmp([packed(r, 4) for r in few[::-1]], 4, 16), PALETTE[few], 0, False
        ),
        "palette 1": Encoding(
            bmp([packed(r, 1) for r in GRAY[::-1] % 2], 1, 2), PALETTE[GRAY % 2], 0, False
        ),
        "1 bit": Encoding(
            pil(Image.fromarray(GRAY > 99), "BMP"), gray((GRAY > 99) * 255), 0, False
        ),
        "5 bits a color": Encoding(bmp([r.tobytes() for r in rgb555[::-1]], 16), RGB, 7, False),
        "5 and 6 bits a color": Encoding(
            bmp([r.tobytes() for r in rgb565[::-1]], 16, 0, 3, [0xF800, 0x7E0, 0x1F]), RGB, 7, False
        ),
        "runs": Encoding(bmp([*runs, b"\0\1"], 8, 256, 1), PALETTE[few], 0, False),
    }
    return {f"BMP, {name}": encoding for name, encoding in found.items()}


def gifs() -> dict[str, Encoding]:
    few, file = GRAY % 16, with_palette(GRAY % 16, 16)
    after = [with_palette((GRAY + 3) % 16, 16)]
    colors = PALETTE[few]
    found = {
        "plain": Encoding(pil(file, "GIF", interlace=0), colors),
        "interlaced": Encoding(pil(file, "GIF", interlace=1), colors),
        "animated": Encoding(pil(file, "GIF", save_all=True, append_images=after), colors),
        "transparent": Encoding(pil(file, "GIF", transparency=5), colors, 0, False),
        "transparent with a background": Encoding(
            pil(file, "GIF", transparency=5, background=3), colors, 0, False
        ),
        "transparent, interlaced": Encoding(
            pil(file, "GIF", transparency=5, interlace=1), colors, 0, False
        ),
        "transparent, animated": Encoding(
            pil(file, "GIF", save_all=True, append_images=after, transparency=2, disposal=2),
            colors, 0, False,
        ),
    }  # fmt: skip
    return {f"GIF, {name}": encoding for name, encoding in found.items()}


def webps() -> dict[str, Encoding]:
    lossless: dict[str, Any] = {"lossless": True, "exact": True}
    opaque = np.dstack([RGB, np.full_like(ALPHA, 255)])
    again = {"save_all": True, "append_images": frames(RGB)}
    block = {"exif": exif(6, b"Exif\0\0")}
    found = {
        "lossy": Encoding(pil(RGB, "WEBP", quality=95), RGB, 20),
        "lossless": Encoding(pil(RGB, "WEBP", **lossless), RGB),
        "rgba": Encoding(pil(RGBA, "WEBP", **lossless), RGB),
        "lossy rgba": Encoding(pil(RGBA, "WEBP", quality=95, exact=True), RGB, 20),
        "opaque rgba": Encoding(pil(opaque, "WEBP", **lossless), RGB),
        "turned": Encoding(pil(RGB, "WEBP", **lossless, **block), turned(RGB, 6)),
        "turned rgba": Encoding(pil(RGBA, "WEBP", **lossless, **block), turned(RGB, 6)),
        "animated": Encoding(pil(RGB, "WEBP", **lossless, **again), RGB, 0, False),
    }
    return {f"WebP, {name}": encoding for name, encoding in found.items()}


def tiffs() -> dict[str, Encoding]:
    colormap = PALETTE.T.astype(np.uint16) * 257
    both, both16 = np.dstack([GRAY, ALPHA]), np.dstack([GRAY16, ALPHA16])
    planes, planes16 = RGBA.transpose(2, 0, 1), RGB16.transpose(2, 0, 1)
    ycbcr = Image.fromarray(RGB).convert("YCbCr")
    upright = [(274, 3, 1, 6, True)]
    cv = cv2.imencode(".tiff", RGBA[..., [2, 1, 0, 3]])[1].tobytes()
    files: dict[str, tuple[Any, ...]] = {
        "rgb": (tiff(RGB), RGB),
        "rgb, big-endian": (tiff(RGB, byteorder=">"), RGB),
        "rgb, LZW": (pil(RGB, "TIFF", compression="tiff_lzw"), RGB),
        "rgb, tiles": (tiff(RGB, tile=(16, 16), compression="zlib"), RGB),
        "rgb 16": (tiff(RGB16), RGB16 / 257, 1),
        "rgb 16, planes": (tiff(planes16, planarconfig="separate"), RGB16 / 257, 1),
        "gray": (tiff(GRAY, "minisblack"), gray(GRAY)),
        "gray, white is 0": (tiff(255 - GRAY, "miniswhite"), gray(GRAY)),
        "gray 16": (tiff(GRAY16, "minisblack"), gray(GRAY16), 1),
        "gray 16, white is 0": (tiff(65535 - GRAY16, "miniswhite"), gray(GRAY16), 1),
        "1 bit": (pil(Image.fromarray(GRAY > 99), "TIFF"), gray((GRAY > 99) * 255)),
        "1 bit, fax": (
            pil(Image.fromarray(GRAY > 99), "TIFF", compression="group4"),
            gray((GRAY > 99) * 255),
        ),
        "rgba by Pillow": (pil(RGBA, "TIFF"), RGB),
        "rgba by OpenCV": (cv, RGB),
        "rgba, LZW": (pil(RGBA, "TIFF", compression="tiff_lzw"), RGB),
        "rgba, big-endian": (tiff(RGBA, byteorder=">", extrasamples=["unassalpha"]), RGB),
        "rgba, tiles": (tiff(RGBA, tile=(16, 16), extrasamples=["unassalpha"]), RGB),
        "rgba, planes": (
            tiff(planes, planarconfig="separate", extrasamples=["unassalpha"]),
            RGB,
        ),
        "rgba, alpha unspecified": (tiff(RGBA, extrasamples=["unspecified"]), RGB),
        "rgba, multiplied by the program": (tiff(RGBA, extrasamples=["assocalpha"]), RGB),
        "rgba 16": (tiff(RGBA16, extrasamples=["unassalpha"]), RGB16 / 257, 1),
        "gray and alpha": (pil(both, "TIFF", "LA"), gray(GRAY)),
        "gray 16 and alpha": (
            tiff(both16, "minisblack", planarconfig="contig", extrasamples=["unassalpha"]),
            gray(GRAY16),
            1,
        ),
        "palette": (tiff(GRAY, "palette", colormap=colormap), PALETTE[GRAY]),
        "palette by Pillow": (pil(with_palette(GRAY, 256), "TIFF"), PALETTE[GRAY]),
        "four inks": (tiff(INKS, "separated"), OF_INKS, 1),
        "four inks by Pillow": (pil(INKS, "TIFF", "CMYK"), OF_INKS, 1),
        "YCbCr": (pil(ycbcr, "TIFF"), RGB, 3),
        "YCbCr, JPEG": (pil(RGB, "TIFF", compression="jpeg", quality=95), RGB, 12),
        "pages": (tiff(np.stack([RGB, 255 - RGB])), RGB),
        "pages by Pillow": (pil(RGB, "TIFF", save_all=True, append_images=frames(RGB)), RGB),
        "turned": (pil(RGB, "TIFF", tiffinfo={274: 6}), turned(RGB, 6)),
        "turned rgba": (pil(RGBA, "TIFF", tiffinfo={274: 7}), turned(RGB, 7)),
        "turned rgb 16": (tiff(RGB16, extratags=upright), turned(RGB16, 6) / 257, 1),
        "turned palette": (
            tiff(GRAY, "palette", colormap=colormap, extratags=upright),
            turned(PALETTE[GRAY], 6),
        ),
    }
    return {
        f"TIFF, {name}": Encoding(*file)._replace(in_graphs=False) for name, file in files.items()
    }


def jpegs() -> dict[str, Encoding]:
    def segment(marker: int, payload: bytes) -> bytes:
        return bytes([0xFF, marker]) + struct.pack(">H", len(payload) + 2) + payload

    plain = pil(RGB, "JPEG", quality=95)
    blocks = {n: segment(0xE1, exif(n, b"Exif\0\0")) for n in range(1, 9)}
    inks = pil(INKS, "JPEG", "CMYK", quality=97)
    adobe = inks.index(b"\xff\xee")
    without = inks[:adobe] + inks[adobe + 16 :]
    # YCCK: the inks are stored inverted, the first three as red, green and blue are in YCbCr.
    ycc = np.asarray(Image.fromarray(INKS[..., :3]).convert("YCbCr"))
    stored = np.dstack([ycc, 255 - INKS[..., 3]])
    tagged = bytearray(pil(255 - stored, "JPEG", "CMYK", quality=97))
    tagged[tagged.index(b"\xff\xee") + 15] = 2
    found = {
        "420": Encoding(plain, RGB, 12),
        "444": Encoding(pil(RGB, "JPEG", quality=95, subsampling=0), RGB, 6),
        "progressive": Encoding(pil(RGB, "JPEG", quality=95, progressive=True), RGB, 12),
        "rgb": Encoding(pil(RGB, "JPEG", quality=95, keep_rgb=True), RGB, 6),
        "gray": Encoding(pil(GRAY, "JPEG", quality=95), gray(GRAY), 30),
        "four inks of Adobe": Encoding(inks, OF_INKS, 8),
        "four inks without marker": Encoding(without, OF_INKS, 8, False),
        "four inks of Adobe as YCCK": Encoding(bytes(tagged), OF_INKS, 12),
        "turned, after a long comment": Encoding(
            plain[:2] + segment(0xFE, b"a comment " * 900) + blocks[6] + plain[2:],
            turned(RGB, 6),
            12,
        ),
        "turned twice": Encoding(plain[:2] + blocks[3] + blocks[6] + plain[2:], turned(RGB, 3), 12),
    }
    for n, block in blocks.items():
        found[f"turned {n}"] = Encoding(plain[:2] + block + plain[2:], turned(RGB, n), 12)
    return {f"JPEG, {name}": encoding for name, encoding in found.items()}


ENCODINGS = pngs() | bmps() | gifs() | webps() | tiffs() | jpegs()
