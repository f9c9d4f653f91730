"""Numbers, pictures and histograms for Weights & Biases."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._core.extras import require
from towerpack._core.files import replace_file
from towerpack._core.logs import get_logger
from towerpack.callbacks.monitors._base import Monitor

_logger = get_logger(__name__)


class WandbMonitor(Monitor):
    """Logs numbers, pictures, histograms and settings to a run of Weights & Biases.

        monitors=[JSONLMonitor('runs/x/stats.jsonl'), WandbMonitor('runs/x', project='digits')]

    A continued training continues the same run; what it does again is in it twice, since curves are
    drawn over `global_step`. Where the server cannot be reached at the start, the run is offline,
    as with `mode='offline'`: `wandb sync` sends it later. Graphs are not for it.

    Args:
        run_dir: Where the run's id and files are kept: the training's run directory.
        project: Name of the project.
        name: Of the run; None for the directory's name.
        **init: What else `wandb.init` takes, such as `entity`, `tags` and `mode`.

    Raises:
        MissingExtraError: wandb or Pillow is not installed.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        *,
        project: str = "towerpack",
        name: str | None = None,
        **init: Any,
    ) -> None:
        require("PIL", extra="wandb", needed_for="WandbMonitor")
        self._wandb: Any = require("wandb", extra="wandb", needed_for="WandbMonitor")
        self._dir = Path(run_dir)
        # The terminal is not to be read along: it is drawn on.
        init.setdefault("settings", self._wandb.Settings(console="off"))
        self._init = {"project": project, "name": name or self._dir.resolve().name, **init}
        self._run: Any = None
        self._step = 0
        self._row: dict[str, Any] = {}

    def put_scalar(self, name: str, value: float, step: int) -> None:
        """A point of a curve."""
        self._add(name, value, step)

    def put_image(self, name: str, image: np.ndarray, step: int) -> None:
        """A picture."""
        picture = image[..., 0] if image.shape[2] == 1 else image
        self._add(name, self._wandb.Image(picture), step)

    def put_histogram(self, name: str, values: np.ndarray, step: int) -> None:
        """A distribution; what is not finite is left out."""
        counts = np.histogram(values[np.isfinite(values)], bins=64)
        self._add(name, self._wandb.Histogram(np_histogram=counts), step)

    def put_settings(self, settings: Mapping[str, bool | int | float | str]) -> None:
        """The run's configuration."""
        with self._reached() as run:
            run.config.update(dict(settings), allow_val_change=True)

    def flush(self) -> None:
        """Hand over the last step's values; wandb's own process writes and sends."""
        if self._row:
            with self._reached() as run:
                run.log({"global_step": self._step, **self._row})
            self._row = {}

    def close(self) -> None:
        """Hand over, and end the run."""
        self.flush()
        run, self._run = self._run, None
        if run is not None:
            run.finish()

    def __repr__(self) -> str:
        return f"WandbMonitor({str(self._dir)!r})"

    def _add(self, name: str, value: Any, step: int) -> None:
        if step != self._step:
            self.flush()
            self._step = step
        self._row[name] = value

    @contextlib.contextmanager
    def _reached(self) -> Generator[Any]:
        """The run; an error of communication within becomes a `ConnectionError`."""
        if self._run is None:
            self._run = self._started()
        try:
            yield self._run
        except self._wandb.errors.CommError as error:
            raise ConnectionError(str(error)) from error

    def _started(self) -> Any:
        file = self._dir / "wandb-id"
        known = file.read_text() if file.exists() else None
        run_id = known or secrets.token_hex(4)
        self._dir.mkdir(parents=True, exist_ok=True)
        given = {"dir": str(self._dir), "id": run_id, "resume": "allow", **self._init}
        try:
            run = self._wandb.init(**given)
        except self._wandb.errors.AuthenticationError:
            raise
        except self._wandb.errors.CommError as error:
            _logger.warning(
                "Weights & Biases cannot be reached (%s). `wandb sync %s` sends the run later.",
                error,
                self._dir / "wandb" / f"offline-run-*-{run_id}",
            )
            self._wandb.teardown()  # The id is in use until then.
            run = self._wandb.init(**{**given, "mode": "offline"})
        run.define_metric("*", step_metric="global_step")
        replace_file(file, run_id.encode())
        return run
