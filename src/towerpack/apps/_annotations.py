"""Checks that annotations of all formats share: typed records, bad ones, pictures and boxes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, Protocol

import numpy as np
import pydantic
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack._core.logs import get_logger
from towerpack.apps._splits import Places
from towerpack.dataflow.images import ImageHeader, clip_boxes, image_header

_LOG = get_logger(__name__)
_HEADER_BYTES: Final = 1 << 18

Size = tuple[float, float]
"""Width and height; zeros if they are not stated."""


class Record(pydantic.BaseModel):
    """Base of records in files of annotations. Numbers are finite; other fields are ignored."""

    model_config = pydantic.ConfigDict(allow_inf_nan=False, coerce_numbers_to_str=True)


class AnnotationPlaces(Places, Protocol):
    """The part of a recipe that says where pictures and their annotations lie."""

    @property
    def images(self) -> str | None: ...
    @property
    def bad_boxes(self) -> str: ...
    @property
    def boxes_on(self) -> str: ...


class Checks:
    """Checks of the annotations of one data set.

    Bad annotations are errors, or are counted and left out if `bad_boxes` is "skip".

    Args:
        config: Has `bad_boxes` and `boxes_on`.
    """

    def __init__(self, config: AnnotationPlaces) -> None:
        self._skips = config.bad_boxes == "skip"
        self._boxes_on = config.boxes_on
        self._other = "upright" if config.boxes_on == "stored" else "stored"
        self._skipped: list[str] = []
        self._turned: list[Path] = []

    @contextmanager
    def at(self, where: str | Path) -> Iterator[None]:
        """Add the place to the error of a bad annotation, or count the annotation and go on."""
        try:
            yield
        except (OSError, ValueError) as error:
            what = f"{where}{reason(error)}"
            if not self._skips:
                got, expected, fix = (
                    getattr(error, name, None) for name in ("got", "expected", "fix")
                )
                skip = "set data.bad_boxes=skip to leave such annotations out"
                fix = f"{fix}, or {skip}" if fix else skip
                raise FormatError(what, got=got, expected=expected, fix=fix) from error
            self._skipped.append(what)

    def header(self, picture: Path, where: str, stated: Size = (0, 0)) -> ImageHeader:
        """Return the header of a picture after a comparison with the size in its annotations.

        Raises:
            FormatError: The picture is missing or damaged, or has another size.
        """
        if not picture.is_file():
            raise FormatError(
                f"{where}: there is no picture {picture}.",
                fix="add the picture, or remove its annotations",
            )
        header = read_header(picture)
        size, other = _sizes(header, self._boxes_on)
        if all(stated) and stated != size:
            raise FormatError(
                f"{where}: the picture {picture} and its annotations differ in size.",
                got="annotations of {:g} x {:g} pixels".format(*stated),
                expected="{:g} x {:g}, the size of the {} picture".format(*size, self._boxes_on),
                fix=f"set data.boxes_on to {self._other}, because EXIF turns the picture"
                if stated == other
                else "annotate the picture as it is now",
            )
        return header

    def boxes(
        self,
        picture: Path,
        header: ImageHeader,
        places: Sequence[str],
        corners: Sequence[Sequence[float]],
        unit: Literal["pixel", "share"] = "pixel",
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return boxes as shares of the upright picture, and which of them have an area in it.

        Args:
            picture: The file.
            header: Its header.
            places: Where each box is written.
            corners: x1, y1, x2, y2 of each box.
            unit: "pixel", or "share" of the picture.
        """
        values = np.array(corners, np.float64).reshape(-1, 4)
        fix = None
        if unit == "pixel":
            size, other = _sizes(header, self._boxes_on)
            if (values > np.tile(size, 2) + 1).any() and (values <= np.tile(other, 2) + 1).all():
                self._turned.append(picture)
                fix = f"set data.boxes_on to {self._other}"
            values = values / np.tile(size, 2)
        shares, good = clip_boxes(values, 1, 1)
        for bad in np.flatnonzero(~good).tolist():
            with self.at(places[bad]):
                raise FormatError(
                    "A box has no area within its picture.",
                    got=", ".join(f"{100 * value:.4g} %" for value in values[bad]),
                    expected="x1 < x2 and y1 < y2",
                    fix=fix,
                )
        orientation = header.orientation if self._boxes_on == "stored" else 1
        if orientation > 4:
            shares = shares[:, [1, 0, 3, 2]]
        for axis, mirrored in enumerate((orientation in (2, 3, 6, 7), orientation in (3, 4, 7, 8))):
            if mirrored:
                shares[:, [axis, axis + 2]] = 1 - shares[:, [axis + 2, axis]]
        return shares, good

    def orientation(self, picture: str | Path) -> int:
        """Return the EXIF orientation by which annotations are to be turned; 1 is upright."""
        return read_header(picture).orientation if self._boxes_on == "stored" else 1

    def warn(self) -> None:
        """Warn once of annotations that were left out, and once of those that fit otherwise."""
        if self._skipped:
            count, first = len(self._skipped), self._skipped[0]
            _LOG.warning("%d bad annotations were left out; the first: %s", count, first)
        if self._turned:
            _LOG.warning(
                "EXIF turns %d pictures whose annotations fit only the other way; the first: %s. "
                "Set data.boxes_on to %s if annotations were measured so.",
                len(self._turned),
                self._turned[0],
                self._other,
            )


def read_header(picture: str | Path) -> ImageHeader:
    """Read the header of a picture.

    Raises:
        FormatError: The file is no picture, or a damaged one.
    """
    with open(picture, "rb") as file:
        start = file.read(_HEADER_BYTES)
        # The EXIF block of a WebP or TIFF file may stand at its end.
        whole = start if start.startswith((b"\xff\xd8", b"\x89PNG")) else start + file.read()
    return image_header(whole, name=str(picture))


def _sizes(header: ImageHeader, boxes_on: str) -> tuple[Size, Size]:
    """Return the width and height of the picture that was annotated, and those of the other."""
    height, width = header.upright_size
    stored = header.width, header.height
    return (stored, (width, height)) if boxes_on == "stored" else ((width, height), stored)


def reason(error: OSError | ValueError) -> str:
    """Return the end of a sentence that begins with the place of an error."""
    if isinstance(error, FormatError):
        return f": {error.what}"
    if isinstance(error, pydantic.ValidationError):
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "it"
        return f" is damaged: {field}: {first['msg']}, got {str(first['input'])[:80]!r}."
    return f" is damaged: {error}."
