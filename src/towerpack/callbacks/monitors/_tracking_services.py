"""Monitors for MLflow and Weights & Biases."""

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

# Limits of an MLflow server for one request.
_MOST_METRICS: Final = 1000
_MOST_PARAMS: Final = 100
_LONGEST_PARAM: Final = 6000


class MLflowMonitor(Monitor):
    """Log scalars, images and settings to an MLflow run. Histograms and graphs are ignored.

        monitors=[JSONLMonitor('runs/x/stats.jsonl'), MLflowMonitor('runs/x', name='x')]

    Scalars are sent when the monitor is flushed: after each epoch and before each checkpoint. A
    resumed training continues the same MLflow run. MLflow cannot delete values, so the first values
    of repeated steps remain. Each request has one retry and a timeout of ten seconds, unless
    `MLFLOW_HTTP_REQUEST_MAX_RETRIES` and `MLFLOW_HTTP_REQUEST_TIMEOUT` are set.

    Args:
        run_dir: The training's run directory, in which `mlflow.json` stores the id of the run.
        experiment: Name of the experiment, created if absent.
        name: Name of the run; None for the directory's name.
        tracking_uri: Address of the server or store; None for MLflow's own settings.

    Raises:
        ConfigError: MLflow cannot open the store.
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
        self._sent: dict[str, int] = {}  # last step by name
        self._metrics: list[Any] = []
        try:
            self._client: Any = mlflow.MlflowClient(tracking_uri=tracking_uri)
        except self._error as error:
            raise ConfigError(f"MLflow cannot open the store: {error}") from error

    def put_scalar(self, name: str, value: float, step: int) -> None:
        name = _allowed(name)
        if step <= self._known.get(name, -1):
            return
        if len(self._metrics) >= _MOST_METRICS:
            self.flush()  # Before the new value: if it fails, the value is put again.
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
        params = {_allowed(name): str(value)[:_LONGEST_PARAM] for name, value in settings.items()}
        with self._reached() as run_id:
            known = self._client.get_run(run_id).data.params
            new = [self._entities.Param(n, v) for n, v in params.items() if n not in known]
            for i in range(0, len(new), _MOST_PARAMS):
                self._client.log_batch(run_id, params=new[i : i + _MOST_PARAMS])
        changed = [n for n, value in params.items() if known.get(n, value) != value]
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
        try:
            yield self._run_id()
        except self._error as error:
            raise ConnectionError(str(error)) from error

    def _run_id(self) -> str:
        if self._id is None:
            client = self._client
            if self._file.exists():
                run_id = str(json.loads(self._file.read_text())["run_id"])
                client.update_run(run_id, status="RUNNING")
            else:
                experiment = client.get_experiment_by_name(self._experiment)
                experiment_id = experiment and experiment.experiment_id
                experiment_id = experiment_id or client.create_experiment(self._experiment)
                run_id = str(client.create_run(experiment_id, run_name=self._name).info.run_id)
                self._keep(run_id)
            self._id = run_id
        return self._id

    def _keep(self, run_id: str) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._file, json.dumps({"run_id": run_id, "sent": self._sent}).encode())


def _allowed(name: str) -> str:
    return re.sub(r"[^\w\-. /:]", "_", name)


def _squeezed(image: np.ndarray) -> np.ndarray:
    return image[..., 0] if image.shape[2] == 1 else image


class WandbMonitor(Monitor):
    """Log scalars, images, histograms and settings to a run of Weights & Biases.

        monitors=[JSONLMonitor('runs/x/stats.jsonl'), WandbMonitor('runs/x', project='digits')]

    A resumed training continues the same run, in which repeated steps have two values. Plots use
    `global_step` as their x-axis. If the server cannot be reached at the start, the run is offline,
    as with `mode='offline'`, and `wandb sync` sends it later.

    Args:
        run_dir: The training's run directory, for the id and files of the run.
        project: Name of the project.
        name: Name of the run; None for the directory's name.
        **init: Further arguments of `wandb.init`, such as `entity`, `tags` and `mode`.

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
        # Capturing the terminal would disturb the progress display.
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
        options = {"dir": str(self._dir), "id": run_id, "resume": "allow", **self._init}
        try:
            run = self._wandb.init(**options)
        except self._wandb.errors.AuthenticationError:
            raise
        except self._wandb.errors.CommError as error:
            _logger.warning(
                "Weights & Biases cannot be reached (%s). `wandb sync %s` sends the run later.",
                error,
                self._dir / "wandb" / f"offline-run-*-{run_id}",
            )
            self._wandb.teardown()  # Releases the id.
            run = self._wandb.init(**{**options, "mode": "offline"})
        run.define_metric("*", step_metric="global_step")
        replace_file(file, run_id.encode())
        return run
