from __future__ import annotations

import glob
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

from towerpack._core.errors import ConfigError
from towerpack._core.files import read_regular, replace_file
from towerpack.dataflow import DataFlow
from towerpack.dataflow.sources.discovery import IMAGE_EXTENSIONS, Discovery, is_image

Split = Literal["train", "val", "test"]
T = TypeVar("T")
CLASSES: Final = "classes.json"  # file in a run directory with the names of the classes


class Inputter(ABC):
    """Data of a task, as dataflows of batches. An inputter may also hold an augmenter.

    Attributes:
        batch_size: Number of datapoints in a batch.
        class_names: Names of the classes, if the task has classes.
        suffixes: File extensions that inference reads in a folder.
    """

    batch_size: int
    suffixes: Sequence[str] = ()
    class_names: Sequence[str] = ()

    @abstractmethod
    def flow(self, split: Split) -> DataFlow:
        """Return a dataflow of the batches of a split, which match the modeler's `inputs()`.

        Args:
            split: 'train' is shuffled, augmented, and has only whole batches. 'val' and 'test' are
                in order, with each datapoint once. Their last batch may be smaller.

        Raises:
            ConfigError: There are no such data.
        """

    def row_names(self, split: Split) -> Sequence[str | bytes] | None:
        """Return the name or the content of each row of a split; None if rows have no names.

        A run stores hashes of the names, so that an evaluation can warn about training rows.

        Args:
            split: 'train', 'val' or 'test'.
        """
        del split

    def sources(self, names: Sequence[str]) -> Sequence[str]:
        """Expand the arguments of inference to sources for `read`. The default finds files.

        Args:
            names: Files, folders (of which files with `suffixes` are read) and patterns; `-` reads
                such names from standard input, one per line.

        Raises:
            ConfigError: A name matches nothing.
        """
        return list(_files(names, self.suffixes))

    def keep(self, run_dir: Path) -> None:
        """Write the files that predictions need besides weights and recipe, such as a vocabulary.

        Args:
            run_dir: Directory of a run, or of a version of an exported model.
        """
        del run_dir

    def restore(self, run_dir: Path | None) -> None:
        """Read the files that `keep` wrote, if they exist.

        Args:
            run_dir: Directory of a run; None derives everything from the data again.
        """
        del run_dir

    @abstractmethod
    def read(self, source: Any) -> Any:
        """Read one sample for inference, such as an image [h, w, 3] or a text.

        Args:
            source: Path, or another source that the task accepts.

        Raises:
            TowerpackError: The source cannot be read.
        """

    @abstractmethod
    def prepare(self, sample: Any) -> Sequence[Any]:
        """Convert a sample to the model's inputs, without labels and without a batch dimension.

        Args:
            sample: Result of `read`.
        """


def write_classes(run_dir: Path, classes: Any) -> None:
    content = json.dumps(classes, ensure_ascii=False, indent=1)
    replace_file(run_dir / CLASSES, content.encode())


def class_list(content: Any) -> list[str]:
    """Check that a JSON value is a list of names, and return it."""
    if not isinstance(content, list) or not all(isinstance(name, str) for name in content):
        raise ValueError(f"the classes are not a list of names: {content!r:.80}")
    return cast("list[str]", content)


def read_classes(run_dir: Path | None, parse: Callable[[Any], T]) -> T | None:
    """Return the classes of a run, or None if it has none. `parse` converts their JSON value."""
    file = None if run_dir is None else run_dir / CLASSES
    if file is None or not file.exists():
        return None
    try:
        return parse(json.loads(read_regular(file)))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise damaged_in_run(file, error) from error


def damaged_in_run(file: Path, error: Exception) -> ConfigError:
    """Return the error for a damaged file of a run."""
    return ConfigError(
        f"{file} is damaged: {error!r:.300}.",
        fix="restore the file, or start again with a different --run-dir (`tune`: --out)",
    )


def _is_source(file: str, suffixes: Sequence[str]) -> bool:
    return is_image(file) if suffixes == IMAGE_EXTENSIONS else file.lower().endswith((*suffixes,))


def _files(names: Sequence[str], suffixes: Sequence[str]) -> Iterator[str]:
    for source in names:
        if source == "-":
            yield from _files([line for line in sys.stdin.read().splitlines() if line], suffixes)
            continue
        path = Path(source).expanduser()
        if path.is_dir():
            discovery = Discovery(lambda file: _is_source(file, suffixes), "of another kind")
            files = sorted(discovery.files(path))
            discovery.report(path)
        elif path.is_file():
            files = [str(path)]
        elif len(names) > 1 and not glob.has_magic(str(path)):
            files = [str(path)]  # its error is shown in its row, so that other files are predicted
        else:
            files = sorted(glob.glob(str(path), recursive=True))
        if not files:
            raise ConfigError(
                f"No files found for {source!r}.",
                expected=f"a file, a pattern, '-', or a folder of {' '.join(suffixes)}",
            )
        yield from files
