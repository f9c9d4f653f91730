"""Checks that annotations of all formats share: typed records, bad ones, pictures and boxes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import pydantic
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack._core.logs import get_logger
from towerpack.apps._config import AnnotatedData
from towerpack.dataflow.images import ImageHeader, clip_boxes, image_header

_LOG = get_logger(__name__)
_HEADER_BYTES: Final = 1 << 18

Size = tuple[float, float]
"""Width and height in pixels; zeros if they are not stated."""


class Record(pydantic.BaseModel):
    """Base of records in files of annotations. Numbers are finite; other fields are ignored."""

    model_config = pydantic.ConfigDict(allow_inf_nan=False, coerce_numbers_to_str=True)


class Checks:
    """Checks of the annotations of a data set, as `bad_boxes` and `boxes_on` say."""

    def __init__(self, config: AnnotatedData) -> None:
        self._skips = config.bad_boxes == "skip"
        self._stored = config.boxes_on == "stored"
        self._other = f"set data.boxes_on to {'upright' if self._stored else 'stored'}"
        self._skipped: list[str] = []
        self._turned: list[str] = []

    @contextmanager
    def at(self, where: str | Path) -> Iterator[None]:
        """Add the place to the error of a bad annotation, or count the annotation and go on."""
        try:
            yield
        except (OSError, ValueError) as error:
            what = f"{where}{reason(error)}"
            if not self._skips:
                fixes = getattr(error, "fix", None), "set data.bad_boxes=skip to leave it out"
                fix = ", or ".join(filter(None, fixes))
                raise FormatError(what, got=getattr(error, "got", None), fix=fix) from error
            self._skipped.append(what)

    def header(self, picture: Path, where: str, stated: Size = (0, 0)) -> ImageHeader:
        """Return the header of a picture after a comparison with the size in its annotations.

        Raises:
            FormatError: The picture is missing or damaged, or has another size.
        """
        if not picture.is_file():
            fix = "add the picture, or remove its annotations"
            raise FormatError(f"{where}: there is no picture {picture}.", fix=fix)
        header = read_header(picture)
        what = f"{where}: the picture {picture} and its annotations differ in size."
        self.compare(header, stated, what)
        return header

    def compare(self, header: ImageHeader, stated: Size, what: str) -> None:
        """Raise an error that says `what` if annotations are of another size."""
        size = self.size(header)
        if all(stated) and stated != size:
            is_turned = header.orientation > 4 and stated == size[::-1]
            raise FormatError(
                what,
                got="annotations of {:g} x {:g} pixels".format(*stated),
                expected="{:g} x {:g} pixels".format(*size),
                fix=self._other if is_turned else "annotate the picture as it is now",
            )

    def size(self, header: ImageHeader) -> Size:
        """Return the width and height of a picture as it was annotated."""
        height, width = header.upright_size
        return (height, width) if self._stored and header.orientation > 4 else (width, height)

    def orientation(self, header: ImageHeader) -> int:
        """Return the EXIF orientation by which annotations are to be turned; 1 is upright."""
        return header.orientation if self._stored else 1

    def boxes(
        self, header: ImageHeader, places: Sequence[str], corners: Sequence[Sequence[float]]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return boxes as shares of the upright picture, and which of them have an area in it.

        Args:
            header: Header of the picture.
            places: Where each box is written.
            corners: x1, y1, x2, y2 of each box, in pixels.
        """
        values, size = np.array(corners, np.float64).reshape(-1, 4), np.tile(self.size(header), 2)
        outside = (values > size + 1).any() and (values <= size[::-1] + 1).all()
        is_turned = bool(header.orientation > 4 and outside)
        if is_turned:
            self._turned.append(places[0])
        shares, good = clip_boxes(values / size, 1, 1)
        for bad in np.flatnonzero(~good).tolist():
            with self.at(places[bad]):
                got = ", ".join(f"{value:g}" for value in values[bad])
                fix = self._other if is_turned else None
                raise FormatError("A box has no area within its picture.", got=got, fix=fix)
        orientation = self.orientation(header)
        if orientation > 4:
            shares = shares[:, [1, 0, 3, 2]]
        for axis, mirrored in enumerate([(2, 3, 6, 7), (3, 4, 7, 8)]):
            if orientation in mirrored:
                shares[:, [axis, axis + 2]] = 1 - shares[:, [axis + 2, axis]]
        return shares, good

    def warn(self) -> None:
        """Warn once of annotations that were left out, and once of those that fit otherwise."""
        if self._skipped:
            count, first = len(self._skipped), self._skipped[0]
            _LOG.warning("%d bad annotations were left out; the first: %s", count, first)
        if self._turned:
            _LOG.warning(
                "EXIF turns %d pictures whose annotations fit only the other way; the first: %s. "
                "If annotations were measured so, %s.",
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
        data = file.read(_HEADER_BYTES)
        if not data.startswith((b"\xff\xd8", b"\x89PNG")):
            data += file.read()  # The EXIF block of a WebP or TIFF file may stand at its end.
    return image_header(data, name=str(picture))


def reason(error: OSError | ValueError) -> str:
    """Return the end of a sentence that begins with the place of an error."""
    if isinstance(error, FormatError):
        return f": {error.what}"
    if isinstance(error, pydantic.ValidationError):
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "it"
        return f" is damaged: {field}: {first['msg']}, got {str(first['input'])[:80]!r}."
    return f" is damaged: {error}."
