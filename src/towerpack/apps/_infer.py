from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf

from towerpack._core.batching import compute_in_halves
from towerpack._core.errors import ConfigError, TowerpackError, reason_of
from towerpack._core.files import csv_of, replace_file
from towerpack._core.naming import unique
from towerpack._core.pictures import png
from towerpack.apps._inputter import Inputter
from towerpack.apps._modeler import Display
from towerpack.apps._runner import Runner
from towerpack.dataflow.images import image_grid

_ITEM_ERRORS: Final = (TowerpackError, tf.errors.OpError, OSError, UnicodeError)
_MOST_ON_SHEET: Final = 48
_COLUMNS: Final = 6
_TABLE: Final = "predictions.csv"
_LISTING: Final = "predictions.json"
_SHEET: Final = "contact-sheet.png"


@dataclass(frozen=True)
class Inference:
    """Results of inference.

    Attributes:
        rows: One row per source, in order: `source`, followed by the results or by `error`.
        files: Paths of the written files.
        step: Step of the checkpoint.
    """

    rows: Sequence[Mapping[str, Any]]
    files: Sequence[Path]
    step: int


def infer(
    runner: Runner, display: Display, sources: Sequence[str], folder: Path | None = None
) -> Inference:
    """Predict files. Write annotated images or texts, a contact sheet and tables.

    Args:
        runner: Runner of a run that has a checkpoint.
        display: Display of the same application.
        sources: Files, folders, patterns (`*.jpg`), and other names that `Inputter.sources`
            accepts.
        folder: Folder for the results, which replace earlier results. None writes no files.

    Raises:
        ConfigError: A source does not exist, or the folder contains tables of another program.
    """
    paths = list(runner.inputter.sources(sources))
    predictor = runner.predictor(list(runner.modeler.infer_outputs), runner.modeler.for_inference())
    rows: list[dict[str, Any]] = []
    shown: list[tuple[np.ndarray, str]] = []
    files: list[Path] = []
    taken: set[str] = set()
    size = runner.inputter.batch_size
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_earlier(folder)
    for start in range(0, len(paths), size):
        for path, sample, outputs in _predicted(runner, predictor, paths[start : start + size]):
            if isinstance(outputs, Exception):
                is_known = isinstance(outputs, TowerpackError)
                text = str(outputs).splitlines()[0] if is_known else reason_of(outputs)
                rows.append({"source": path, "error": text})
                continue
            rows.append({"source": path, **display.row(outputs)})
            if folder is None:
                continue
            name = f"text-{len(rows):04}" if isinstance(sample, str) else Path(path).stem
            name = unique(name, taken)
            taken.add(name)
            picture = display.draw(sample, outputs)
            more = display.files(sample, outputs)
            if picture is not None:
                more = {".png": png(picture), **more}
                shown += [(picture, Path(path).name)] if len(shown) < _MOST_ON_SHEET else []
            for ending, content in more.items():
                files.append(folder / f"{name}{ending}")
                replace_file(files[-1], content)
            if more:
                rows[-1]["files"] = [f"{name}{ending}" for ending in more]
    if folder is not None:
        files += _written(folder, rows, shown)
    return Inference(rows, files, predictor.step)


def _remove_earlier(folder: Path) -> None:
    listing = folder / _LISTING
    if not listing.is_file():
        return
    try:
        rows = json.loads(listing.read_bytes())
        earlier = [row.get("files", []) for row in rows if row["source"]]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{listing} would be overwritten, although `towerpack infer` did not write it.",
            fix="choose another folder with --out",
        ) from error
    for name in itertools.chain(*earlier, [_SHEET, _TABLE, _LISTING]):
        (folder / name).unlink(missing_ok=True)


def _predicted(
    runner: Runner, predictor: Any, paths: Iterable[str]
) -> Iterator[tuple[str, Any, Any]]:
    """Iterate over paths, each with its sample and outputs, or with its error."""
    inputter: Inputter = runner.inputter
    read: list[tuple[str, Any, Any]] = []
    for path in paths:
        try:
            sample = inputter.read(path)
            read.append((path, sample, inputter.prepare(sample)))
        except _ITEM_ERRORS as error:
            read.append((path, error, None))
    # Samples of equal shape form a batch. Most tasks have only one shape.
    by_shape: dict[Any, list[int]] = {}
    for index, (_, _, prepared) in enumerate(read):
        if prepared is not None:
            by_shape.setdefault(tuple(np.shape(array) for array in prepared), []).append(index)
    results: dict[int, Any] = {}
    for indices in by_shape.values():
        prepared = [read[index][2] for index in indices]
        outputs = compute_in_halves(partial(_outputs, predictor), prepared, _ITEM_ERRORS)
        results |= zip(indices, outputs, strict=True)
    for index, (path, sample, _) in enumerate(read):
        yield path, sample, results.get(index, sample)


def _outputs(predictor: Any, prepared: Sequence[Any]) -> list[dict[str, np.ndarray]]:
    results = predictor(*map(np.stack, zip(*prepared, strict=True)))
    names = predictor.output_names
    return [dict(zip(names, row, strict=True)) for row in zip(*results, strict=True)]


def _written(folder: Path, rows: Sequence[Mapping[str, Any]], shown: Sequence[Any]) -> list[Path]:
    table, listing = folder / _TABLE, folder / _LISTING
    plain = [{k: v for k, v in row.items() if not isinstance(v, list | dict)} for row in rows]
    titles = list(dict.fromkeys(k for row in plain for k in row))
    replace_file(table, csv_of([titles, *([row.get(k, "") for k in titles] for row in plain)]))
    text = json.dumps(list(rows), indent=1, ensure_ascii=False)
    replace_file(listing, text.encode("utf-8", "backslashreplace"))
    if not shown:
        return [table, listing]
    sheet, num_rows = folder / _SHEET, -(-len(shown) // _COLUMNS)
    image_grid(shown, sheet, rows=num_rows, cols=min(_COLUMNS, len(shown)), label=1)
    return [table, listing, sheet]
