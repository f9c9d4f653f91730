"""A trained model on a user's files."""

from __future__ import annotations

import glob
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from towerpack._core.errors import ConfigError, TowerpackError
from towerpack._core.files import csv_of, replace_file
from towerpack._core.naming import unique
from towerpack.apps._files import write_picture
from towerpack.apps._inputter import Inputter
from towerpack.apps._modeler import Display
from towerpack.apps._runner import Runner
from towerpack.dataflow.images import image_grid

_ON_SHEET: Final = 48
_COLUMNS: Final = 6


@dataclass(frozen=True)
class Inference:
    """Results of inference.

    Attributes:
        rows: One for each source in order: `source`, then what the display tells, or `error`.
        files: What was written.
        step: Of the checkpoint.
    """

    rows: Sequence[Mapping[str, Any]]
    files: Sequence[Path]
    step: int


def infer(
    runner: Runner, display: Display, sources: Sequence[str], folder: Path | None = None
) -> Inference:
    """Predict files; write an annotated picture of each, a contact sheet, and tables.

    Args:
        runner: Of a run that has a checkpoint.
        display: Of its application.
        sources: Files, folders, patterns (`*.jpg`); `-` for names on standard input, one a line.
        folder: Where results go; None for none.

    Raises:
        ConfigError: There is no such file.
    """
    paths = list(_expanded(sources, runner.inputter.suffixes))
    predictor = runner.predictor(list(runner.modeler.infer_outputs))
    rows: list[dict[str, Any]] = []
    shown: list[tuple[np.ndarray, str]] = []
    files: list[Path] = []
    taken: set[str] = set()
    size = runner.inputter.batch_size
    for start in range(0, len(paths), size):
        for path, sample, outputs in _predicted(runner, predictor, paths[start : start + size]):
            if isinstance(sample, TowerpackError):
                rows.append({"source": path, "error": str(sample).splitlines()[0]})
                continue
            rows.append({"source": path, **display.row(outputs)})
            picture = None if folder is None else display.draw(sample, outputs)
            if folder is not None and picture is not None:
                name = unique(Path(path).stem, taken)
                taken.add(name)
                files.append(folder / f"{name}.png")
                write_picture(files[-1], picture)
                rows[-1]["picture"] = files[-1].name
                shown += [(picture, Path(path).name)] if len(shown) < _ON_SHEET else []
    if folder is not None:
        files += _written(folder, rows, shown)
    return Inference(rows, files, predictor.step)


def _predicted(
    runner: Runner, predictor: Any, paths: Iterable[str]
) -> Iterator[tuple[str, Any, dict[str, np.ndarray]]]:
    """Each path with what was read, or the error that it raised, and the outputs for it."""
    inputter: Inputter = runner.inputter
    read: list[tuple[str, Any, Any]] = []
    for path in paths:
        try:
            sample = inputter.read(path)
            read.append((path, sample, inputter.prepare(sample)))
        except TowerpackError as error:
            read.append((path, error, None))
    inputs = [prepared for _, _, prepared in read if prepared is not None]
    results = (
        predictor(*(np.stack(column) for column in zip(*inputs, strict=True))) if inputs else []
    )
    place = 0
    for path, sample, prepared in read:
        outputs = {}
        if prepared is not None:
            names = predictor.output_names
            outputs = {n: r[place] for n, r in zip(names, results, strict=True)}
            place += 1
        yield path, sample, outputs


def _expanded(sources: Sequence[str], suffixes: Sequence[str]) -> Iterator[str]:
    for source in sources:
        if source == "-":
            yield from _expanded([line for line in sys.stdin.read().splitlines() if line], suffixes)
            continue
        path = Path(source).expanduser()
        if path.is_dir():
            found = sorted(str(p) for p in path.rglob("*") if p.suffix.lower() in suffixes)
        elif path.is_file():
            found = [str(path)]
        elif len(sources) > 1 and not glob.has_magic(str(path)):
            found = [str(path)]  # Told in its row, so that the others are predicted.
        else:
            found = sorted(glob.glob(str(path), recursive=True))
        if not found:
            raise ConfigError(
                f"There is nothing to read at {source!r}.",
                expected=f"a file, a pattern, '-', or a folder of {' '.join(suffixes)}",
            )
        yield from found


def _written(folder: Path, rows: Sequence[Mapping[str, Any]], shown: Sequence[Any]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    table, listing = folder / "predictions.csv", folder / "predictions.json"
    plain = [{k: v for k, v in row.items() if not isinstance(v, list | dict)} for row in rows]
    titles = list(dict.fromkeys(k for row in plain for k in row))
    replace_file(table, csv_of([titles, *([row.get(k, "") for k in titles] for row in plain)]))
    replace_file(listing, json.dumps(list(rows), indent=1, ensure_ascii=False).encode())
    if not shown:
        return [table, listing]
    sheet = folder / "contact-sheet.png"
    image_grid(
        shown,
        sheet,
        rows=-(-len(shown) // _COLUMNS),
        cols=min(_COLUMNS, len(shown)),
        label=1,
    )
    return [table, listing, sheet]
