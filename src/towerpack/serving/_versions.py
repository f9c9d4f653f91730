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
# PNG of one black pixel, for the first call of models that take image files
_PIXEL = png(np.zeros((1, 1, 3), np.uint8))


class Versions:
    """Versions of a model in a directory. `current` is the newest version that can be loaded.

    A version is a directory whose name is a number. While a new version is loaded and called once
    with `batch` rows, the previous version serves requests. If the current version is removed, the
    newest other version is loaded. A directory that contains model files is itself a version.
    """

    def __init__(self, path: Path, batch: int) -> None:
        self._path, self._batch = path, batch
        # Modification time and error of versions that failed. Changed versions are tried again.
        self.failed: dict[int, tuple[float, str]] = {}
        with quiet_start():
            while (number := self._wanted()) is not None:
                if loaded := self._load(number):
                    self.current = loaded
                    return
        raise ConfigError(
            f"{path} does not contain a model that can be served.",
            got="\n".join(text for _, text in self.failed.values()) or None,
            expected="an exported model, or directories 1, 2, … with exported models",
        )

    async def watch(self) -> None:
        """Load new versions in a thread until the task is cancelled."""
        while True:
            await asyncio.sleep(1)
            try:
                number = self._wanted()
                if number is not None and number != self.current[0]:
                    self.current = await asyncio.to_thread(self._load, number) or self.current
            except OSError as error:  # for example, the directory was removed
                _log.warning("%s cannot be read: %s", self._path, error)

    def _wanted(self) -> int | None:
        """Return the number of the newest version that has not failed since its last change."""
        paths = self._paths()
        same = (n for n, (changed, _) in self.failed.items() if changed == _changed(paths.get(n)))
        self.failed = {number: self.failed[number] for number in same}
        return max(paths.keys() - self.failed.keys(), default=None)

    def _paths(self) -> dict[int, Path]:
        inside = {int(p.name): p for p in self._path.glob("[0-9]*") if p.name.isdecimal()}
        return inside or {int(self._path.name) if self._path.name.isdecimal() else 1: self._path}

    def _load(self, number: int) -> tuple[int, ExportedModel] | None:
        from towerpack.inference import load_exported  # TensorFlow, which clients do not need

        path = self._paths().get(number, self._path)
        changed = _changed(path)
        try:
            model = load_exported(path)
        except Exception as error:  # noqa: BLE001 - reported in the log and in the status
            self.failed[number] = (changed, text_of(error))
            _log.warning("Version %d cannot be loaded: %s", number, text_of(error))
            return None
        for name, signature in model.signatures.items():
            texts = [key for key, info in signature.inputs.items() if info.dtype == "string"]
            for rows in (1, self._batch):
                try:
                    pixels = {key: np.full(rows, _PIXEL, object) for key in texts}
                    model.run(pixels or signature.random_inputs(rows), name)
                except Exception as error:  # noqa: BLE001 - some inputs cannot be random
                    _log.debug("Test call of signature %s failed: %s", name, text_of(error))
        _log.info("Serving version %d.", number)
        return number, model


def _changed(path: Path | None) -> float:
    return max((each.stat().st_mtime for each in path.rglob("*")), default=0.0) if path else -1.0
