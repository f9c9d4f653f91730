"""Numbers and pictures for MLflow and Weights & Biases."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require
from towerpack._core.files import replace_file
from towerpack._core.logs import get_logger
from towerpack.callbacks.monitors._base import Monitor, Scalar

_logger = get_logger(__name__)

# What an MLflow server takes at once.
_MOST_METRICS: Final = 1000
_MOST_PARAMS: Final = 100
_LONGEST_PARAM: Final = 6000


class MLflowMonitor(Monitor):
    """Log numbers, pictures and settings to an MLflow run.

        monitors=[JSONLMonitor('runs/x/stats.jsonl'), MLflowMonitor('runs/x', name='x')]

    Numbers are sent when the monitor is flushed: after each epoch and before each checkpoint. A
    continued training continues the same run; MLflow forgets nothing, so of steps that are done
    again it keeps the first numbers. Histograms and graphs are not for it. A server that does not
    answer is asked once again within a call, for at most ten seconds each, and else later: where
    they are not set, `MLFLOW_HTTP_REQUEST_MAX_RETRIES` and `MLFLOW_HTTP_REQUEST_TIMEOUT` say so.

    Args:
        run_dir: Where the id of the run is kept, as `mlflow.json`: the training's run directory.
        experiment: Name of the experiment, made if absent.
        name: Of the run; None for the directory's name.
        tracking_uri: Of the server or store; None for MLflow's own settings.

    Raises:
        ConfigError: MLflow refuses the store.
        MissingExtraError: MLflow or Pillow is not installed.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        *,
        experiment: str = "towerpack",
        name: str | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        require("PIL", extra="mlflow", needed_for="MLflowMonitor")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        mlflow: Any = require("mlflow", extra="mlflow", needed_for="MLflowMonitor")
        self._entities: Any = mlflow.entities
        self._error: type[Exception] = mlflow.exceptions.MlflowException
        self._file = Path(run_dir) / "mlflow.json"
        self._experiment, self._name = experiment, name or Path(run_dir).resolve().name
        self._id: str | None = None
        self._known: dict[str, int] = {}
        self._sent: dict[str, int] = {}  # last steps, by name
        self._metrics: list[Any] = []
        try:
            self._client: Any = mlflow.MlflowClient(tracking_uri=tracking_uri)
        except self._error as error:
            raise ConfigError(f"MLflow refuses the store: {error}") from error

    def put_scalar(self, name: str, value: float, step: int) -> None:
        name = _allowed(name)
        if step <= self._known.get(name, -1):
            return
        if len(self._metrics) >= _MOST_METRICS:
            self.flush()  # First: where it fails, this value is put again.
        milliseconds = int(time.time() * 1000)
        self._metrics.append(self._entities.Metric(name, value, milliseconds, step))

    def resume(self, step: int) -> Iterable[Scalar]:
        if self._file.exists():
            self._known = json.loads(self._file.read_text()).get("sent", {})
            self._sent = dict(self._known)
        return ()

    def put_image(self, name: str, image: np.ndarray, step: int) -> None:
        with self._reached() as run_id:
            self._client.log_image(run_id, _squeezed(image), key=_allowed(name), step=step)

    def put_settings(self, settings: Mapping[str, bool | int | float | str]) -> None:
        """Parameters. MLflow keeps the first value of each; others are told."""
        given = {_allowed(name): str(value)[:_LONGEST_PARAM] for name, value in settings.items()}
        with self._reached() as run_id:
            known = self._client.get_run(run_id).data.params
            new = [self._entities.Param(n, v) for n, v in given.items() if n not in known]
            for i in range(0, len(new), _MOST_PARAMS):
                self._client.log_batch(run_id, params=new[i : i + _MOST_PARAMS])
        changed = [n for n, value in given.items() if known.get(n, value) != value]
        if changed:
            _logger.warning("MLflow keeps the earlier values of: %s.", ", ".join(changed))

    def flush(self) -> None:
        if self._metrics:
            with self._reached() as run_id:
                self._client.log_batch(run_id, metrics=self._metrics)
                self._sent |= {metric.key: metric.step for metric in self._metrics}
                self._keep(run_id)
            self._metrics = []

    def close(self) -> None:
        self.flush()
        if self._id is not None:
            with self._reached() as run_id:
                self._client.set_terminated(run_id)
            self._id = None

    def __repr__(self) -> str:
        return f"MLflowMonitor({str(self._file.parent)!r})"

    @contextlib.contextmanager
    def _reached(self) -> Generator[str]:
        """The run's id; MLflow's errors within become those of a connection."""
        try:
            yield self._run_id()
        except self._error as error:
            raise ConnectionError(str(error)) from error

    def _run_id(self) -> str:
        if self._id is None:
            client = self._client
            if self._file.exists():
                found = str(json.loads(self._file.read_text())["run_id"])
                client.update_run(found, status="RUNNING")
            else:
                experiment = client.get_experiment_by_name(self._experiment)
                where = experiment and experiment.experiment_id
                where = where or client.create_experiment(self._experiment)
                found = str(client.create_run(where, run_name=self._name).info.run_id)
                self._keep(found)
            self._id = found
        return self._id

    def _keep(self, run_id: str) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._file, json.dumps({"run_id": run_id, "sent": self._sent}).encode())


def _allowed(name: str) -> str:
    return re.sub(r"[^\w\-. /:]", "_", name)


def _squeezed(image: np.ndarray) -> np.ndarray:
    return image[..., 0] if image.shape[2] == 1 else image


class WandbMonitor(Monitor):
    """Log numbers, pictures, histograms and settings to a run of Weights & Biases.

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
        self._add(name, value, step)

    def put_image(self, name: str, image: np.ndarray, step: int) -> None:
        self._add(name, self._wandb.Image(_squeezed(image)), step)

    def put_histogram(self, name: str, values: np.ndarray, step: int) -> None:
        """A distribution; what is not finite is left out."""
        counts = np.histogram(values[np.isfinite(values)], bins=64)
        self._add(name, self._wandb.Histogram(np_histogram=counts), step)

    def put_settings(self, settings: Mapping[str, bool | int | float | str]) -> None:
        with self._reached() as run:
            run.config.update(dict(settings), allow_val_change=True)

    def flush(self) -> None:
        if self._row:
            with self._reached() as run:
                run.log({"global_step": self._step, **self._row})
            self._row = {}

    def close(self) -> None:
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
