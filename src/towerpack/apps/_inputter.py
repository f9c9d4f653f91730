"""The data of a task."""

from __future__ import annotations

import glob
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from towerpack._core.errors import ConfigError
from towerpack._core.files import replace_file
from towerpack.dataflow import DataFlow
from towerpack.dataflow.sources.discovery import IMAGE_EXTENSIONS, Discovery, is_image

Split = Literal["train", "val", "test"]
CLASSES: Final = "classes.json"
"""The file in a run that holds its classes."""


class Inputter(ABC):
    """The data of a task, as flows of batches; it may own an augmenter.

    Attributes:
        batch_size: Datapoints in a batch.
        class_names: Names of the classes, where the task has classes.
        suffixes: Of files in a folder that inference reads.
    """

    batch_size: int
    suffixes: Sequence[str] = ()
    class_names: Sequence[str] = ()

    @abstractmethod
    def flow(self, split: Split) -> DataFlow:
        """Batches that fit the modeler's `inputs()`.

        Args:
            split: 'train': shuffled, augmented, whole batches; 'val' and 'test': in order, each
                datapoint once, the last batch smaller.

        Raises:
            ConfigError: There are no such data.
        """

    def row_names(self, split: Split) -> Sequence[str | bytes] | None:
        """Return a name for each row of a split, or its content; None if rows have no names.

        A run remembers the names it was trained on, so that an evaluation can report them.
        """
        del split

    def sources(self, given: Sequence[str]) -> Sequence[str]:
        """Sources of inference, each to be given to `read`; here files.

        Args:
            given: Files, folders (their files of `suffixes`), patterns; `-` for those on standard
                input, one a line.

        Raises:
            ConfigError: There is nothing at one of them.
        """
        return list(_files(given, self.suffixes))

    def keep(self, run_dir: Path) -> None:
        """Write what predictions need beside weights and recipe, such as a vocabulary.

        Args:
            run_dir: A run, or a version of an exported model.
        """
        del run_dir

    def restore(self, run_dir: Path | None) -> None:
        """Take what `keep` wrote, if there is some; with None, make it of the data again."""
        del run_dir

    @abstractmethod
    def read(self, source: Any) -> Any:
        """A datapoint of a user for inference, as it is to be shown: a picture [h, w, 3], a text.

        Args:
            source: A path, or what else the task takes.

        Raises:
            TowerpackError: It cannot be read.
        """

    @abstractmethod
    def prepare(self, sample: Any) -> Sequence[Any]:
        """The model's inputs, without labels, for one datapoint that `read` gave."""


def write_classes(run_dir: Path, classes: Any) -> None:
    """Keep the classes of a run, plain values, in it."""
    content = json.dumps(classes, ensure_ascii=False, indent=1)
    replace_file(run_dir / CLASSES, content.encode())


def read_classes(run_dir: Path | None) -> Any:
    """Classes that a run keeps; None where it keeps none."""
    file = None if run_dir is None else run_dir / CLASSES
    if file is None or not file.is_file():
        return None
    return json.loads(file.read_text(encoding="utf-8"))


def _is_source(file: str, suffixes: Sequence[str]) -> bool:
    return is_image(file) if suffixes == IMAGE_EXTENSIONS else file.lower().endswith((*suffixes,))


def _files(given: Sequence[str], suffixes: Sequence[str]) -> Iterator[str]:
    for source in given:
        if source == "-":
            yield from _files([line for line in sys.stdin.read().splitlines() if line], suffixes)
            continue
        path = Path(source).expanduser()
        if path.is_dir():
            discovery = Discovery(lambda file: _is_source(file, suffixes), "of another kind")
            found = sorted(discovery.files(path))
            discovery.report(path)
        elif path.is_file():
            found = [str(path)]
        elif len(given) > 1 and not glob.has_magic(str(path)):
            found = [str(path)]  # Told in its row, so that the others are predicted.
        else:
            found = sorted(glob.glob(str(path), recursive=True))
        if not found:
            raise ConfigError(
                f"There is nothing to read at {source!r}.",
                expected=f"a file, a pattern, '-', or a folder of {' '.join(suffixes)}",
            )
        yield from found
