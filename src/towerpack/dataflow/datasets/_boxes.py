"""Bounding boxes in the XML of PASCAL VOC, parsed without entities."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow._opening import reading

_LARGEST = 1 << 20
_OBJECT = ("annotation", "object")
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


def read_first_box(path: Path) -> NDArray[np.float32]:
    """`[x0, y0, x1, y1]` of the first object, in pixels of the image that was annotated.

    Raises:
        FormatError: The file is damaged, has no object, or declares entities.
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        data = file.read(_LARGEST + 1)
    with reading(path, "an annotation"):
        if len(data) > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST:,} bytes")
        box = _Box().parse(data)
        if not np.isfinite(box).all():
            raise ValueError(f"a box {box.tolist()}")
        return box


class _Box:
    """Collects the corners of the first object."""

    def __init__(self) -> None:
        self._path: list[str] = []
        self._objects = 0
        self._text: dict[str, str] = {}

    def parse(self, data: bytes) -> NDArray[np.float32]:
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        # Entities are all that makes XML dangerous, and a document type is where they are declared.
        parser.StartDoctypeDeclHandler = _refuse
        parser.EntityDeclHandler = _refuse
        parser.Parse(data, True)
        return np.asarray([float(self._text[corner]) for corner in _CORNERS], np.float32)

    def _start(self, name: str, attributes: object) -> None:
        self._path.append(name)
        self._objects += tuple(self._path) == _OBJECT

    def _end(self, name: str) -> None:
        self._path.pop()

    def _characters(self, text: str) -> None:
        if self._objects == 1 and tuple(self._path[:-1]) == (*_OBJECT, "bndbox"):
            self._text[self._path[-1]] = self._text.get(self._path[-1], "") + text


def _refuse(*declaration: object) -> NoReturn:
    raise ValueError("it declares a document type, which annotations do not need")
