"""Texts with their generated continuations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from towerpack.apps._modeler import Display


class TextGenerationDisplay(Display):
    """The generated part of each text in the tables, and the whole text as a file."""

    def row(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        return {"generated": _decoded(outputs)}

    def files(self, sample: Any, outputs: Mapping[str, np.ndarray]) -> Mapping[str, bytes]:
        return {".txt": (str(sample) + _decoded(outputs)).encode()}


def _decoded(outputs: Mapping[str, Any]) -> str:
    return bytes(outputs["generated"]).decode()
