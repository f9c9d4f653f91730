"""The versions of a model in a directory: the newest is served, new ones are taken as they come."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from towerpack._core.errors import ConfigError, text_of
from towerpack._core.logs import get_logger
from towerpack._core.native_log import quiet_start
from towerpack._core.pictures import png

if TYPE_CHECKING:
    from towerpack.inference import ExportedModel

_log = get_logger(__name__)
# A PNG of one black pixel, to warm models that take picture files.
_PIXEL = png(np.zeros((1, 1, 3), np.uint8))


class Versions:
    """The versions of a model below a directory; `current` is the newest that loads, by number.

    A version is a directory whose name is a number. One that appears is loaded and warmed, with
    `batch` rows, while the older one serves; where one is removed, the newest of the others is
    taken again. A directory that holds a model itself is its only version.
    """

    def __init__(self, path: Path, batch: int) -> None:
        self._path, self._batch = path, batch
        # By number: when it was last changed, after which it is tried again, and why it failed.
        self.failed: dict[int, tuple[float, str]] = {}
        with quiet_start():
            while (number := self._wanted()) is not None:
                if loaded := self._load(number):
                    self.current = loaded
                    return
        raise ConfigError(
            f"There is no model to serve in {path}.",
            got="\n".join(text for _, text in self.failed.values()) or None,
            expected="an exported model, or directories 1, 2 … with one each",
        )

    async def watch(self) -> None:
        """Take new versions, for ever; requests are answered while a thread loads them."""
        while True:
            await asyncio.sleep(1)
            try:
                number = self._wanted()
                if number is not None and number != self.current[0]:
                    self.current = await asyncio.to_thread(self._load, number) or self.current
            except OSError as error:  # what was there has been removed meanwhile
                _log.warning("%s cannot be read: %s", self._path, error)

    def _wanted(self) -> int | None:
        """The newest version that is there, and has not failed as it is now."""
        found = self._found()
        same = (n for n, (changed, _) in self.failed.items() if changed == _changed(found.get(n)))
        self.failed = {number: self.failed[number] for number in same}
        return max(found.keys() - self.failed.keys(), default=None)

    def _found(self) -> dict[int, Path]:
        inside = {int(p.name): p for p in self._path.glob("[0-9]*") if p.name.isdecimal()}
        return inside or {int(self._path.name) if self._path.name.isdecimal() else 1: self._path}

    def _load(self, number: int) -> tuple[int, ExportedModel] | None:
        from towerpack.inference import load_exported  # loads TensorFlow; clients need none

        path = self._found().get(number, self._path)
        changed = _changed(path)
        try:
            model = load_exported(path)
        except Exception as error:  # noqa: BLE001 - told in the log and in the status
            self.failed[number] = (changed, text_of(error))
            _log.warning("version %d cannot be loaded: %s", number, text_of(error))
            return None
        for name, signature in model.signatures.items():
            texts = [key for key, info in signature.inputs.items() if info.dtype == "string"]
            for rows in (1, self._batch):
                try:
                    pixels = {key: np.full(rows, _PIXEL, object) for key in texts}
                    model.run(pixels or signature.random_inputs(rows), name)
                except Exception as error:  # noqa: BLE001 - not all can be made up
                    _log.debug("signature %s was not warmed: %s", name, text_of(error))
        _log.info("version %d is served", number)
        return number, model


def _changed(path: Path | None) -> float:
    return max((each.stat().st_mtime for each in path.rglob("*")), default=0.0) if path else -1.0
