from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._user_code import AMBIENT
from towerpack.dataflow._user_files import AnyFile, reading
from towerpack.dataflow.arguments import names_of, repr_of
from towerpack.dataflow.content import content_of_rows, content_of_values
from towerpack.dataflow.datapoints import Datapoint, duplicate, to_rows
from towerpack.dataflow.formats._arrow import (
    Convert,
    TableNode,
    array_of_column,
    arrow,
    columns_of,
    objects,
    values_of_column,
)
from towerpack.dataflow.formats._indexed_files import (
    IndexedFiles,
    Version,
    check_version,
    version_of,
)
from towerpack.dataflow.images._decode import decode_image

_BLOCK: Final = 64


class HFData(IndexedFiles):
    """Source of a Hugging Face data set: datapoint i is row i of a `datasets.Dataset`.

    The files of the data set stay mapped into memory, and worker processes map them too. `select`,
    `shuffle`, `filter` and the columns of a format are respected. Values have the types that
    `ParquetData` yields, and `Array2D` to `Array5D` become arrays. Images, audio and other media
    are the `bytes` of their files.

    A `Dataset` has random access and resumes at once. An `IterableDataset` is read in order, with
    the epoch as in its `set_epoch`, and resumes by reading again. Thread- and fork-safe.

    Args:
        dataset: A `datasets.Dataset` or `datasets.IterableDataset`.
        columns: Columns in the order of the components; datapoints are then tuples. By default,
            datapoints are dicts of all columns.
        decode: Whether to decode images to RGB arrays, as `decode_image` does.

    Raises:
        ConfigError: `dataset` is of another type, has a transform or a format other than
            `"numpy"`, or lacks a column, or `decode` finds no images.
        FormatError: A file was changed, or an image is damaged. Raised while iterating.
    """

    def __init__(
        self, dataset: Any, columns: Sequence[str] | None = None, *, decode: bool = False
    ) -> None:
        classes = [c for c in type(dataset).__mro__ if c.__module__.partition(".")[0] == "datasets"]
        kinds = {cls.__name__ for cls in classes} & {"Dataset", "IterableDataset"}
        if not kinds:
            what = f"HFData needs a Dataset or IterableDataset, got {repr_of(dataset)}."
            raise ConfigError(what, fix="pass one split: HFData(load_dataset(name, split='train'))")
        self.columns = None if columns is None else names_of(columns)
        self.decode = decode
        self.runs_code = dataset.features is None
        self._stream = dataset
        files: list[AnyFile] = []
        if "Dataset" in kinds:
            self._stream, dataset = None, _unformatted(dataset)
            files = [Path(file["filename"]) for file in dataset.cache_files]
        super().__init__(files, in_order_only=self._stream is not None)
        features: Any = dataset.features or {}  # A program's types may be unknown.
        self._features = str(features)
        names = columns_of([*(features or self.columns or "?")], self.columns, "The data set")
        self._convert = _converters(features, names, decode)
        if self._stream is None:
            indices = None
            if dataset._indices is not None:  # after `select`, `shuffle` or `filter`
                indices = dataset._indices.column(0).to_numpy().astype(np.int64)
            parts = _parts_of(dataset.data)
            self._all_mapped = all(map(callable, parts))
            self._node = TableNode(parts, self.columns, self._convert, indices)

    def content(self) -> str:
        data = content_of_values(self.columns, self.decode, self._features)
        if isinstance(self._node, TableNode):
            rows = content_of_rows(self._node, sample=self._all_mapped)
            data += f", {content_of_values(self._node.indices)}, {rows}"
        return f"{super().content()}, {data}"

    def _in_order(self) -> Iterator[Datapoint]:
        dataset: Any = self._stream
        ambient = AMBIENT.get()
        dataset = dataset.with_format(None if self.runs_code else "arrow")
        dataset.set_epoch(0 if ambient is None else ambient.epoch)  # of the new data set
        if not self.runs_code:
            for table in dataset.iter(batch_size=_BLOCK):
                node = TableNode([table], self.columns, self._convert)
                yield from to_rows(node.read(0, range(len(table))))
            return
        for row in map(duplicate, dataset):
            yield row if self.columns is None else tuple(row[name] for name in self.columns)


def _unformatted(dataset: Any) -> Any:
    """Return a data set without its format, but with the columns of the format only."""
    shape: Any = dataset.format
    if shape["type"] not in (None, "numpy") or shape["format_kwargs"]:
        raise ConfigError(
            f"HFData cannot read a data set with the format {shape['type']!r}.",
            expected="no format, or with_format('numpy') without options",
            fix="call with_format(None), and change datapoints with MapData",
        )
    same = list(dataset.column_names) == list(shape["columns"])
    return dataset if same else dataset.select_columns(shape["columns"])


def _parts_of(table: Any) -> list[Any]:
    """Return the parts of a table. Mapped files are functions that map them again."""
    parts: list[Any] = []
    for row in getattr(table, "blocks", [[table]]):
        block = row[0] if len(row) == 1 else table.from_blocks([row])
        held = type(block).__name__ == "InMemoryTable"
        # `datasets` pickles other tables by path. Its import would slow down workers.
        parts.append(block.table if held else partial(getattr, block, "table"))
        with suppress(Exception):  # Not all changes are methods of tables of pyarrow.
            path = Path(block.path)
            part = partial(_map, path, version_of(path), block.replays)
            if part().schema == block.schema and len(part()) == len(block):
                parts[-1] = part
    return parts


def _map(path: Path, version: Version, changes: Sequence[tuple[str, Any, Any]]) -> Any:
    check_version(path, version)
    pa = arrow()
    table: Any = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
    for method, args, kwargs in changes:
        table = getattr(table, method)(*args, **kwargs)
    return table


def _converters(
    features: Mapping[str, Any], names: Sequence[str], decode: bool
) -> dict[str, Convert]:
    kinds = {name: type(features[name]).__name__ for name in names if name in features}
    if decode and "Image" not in kinds.values():
        raise ConfigError("decode=True needs a column of images.", got=f"{dict(features)}")
    converters: dict[str, Convert] = {}
    for name, kind in kinds.items():
        fields = re.findall(r"(\w+): ", str(getattr(features[name], "pa_type", "")))
        if fields == ["bytes", "path"]:
            converters[name] = partial(_contents, decode and kind == "Image")
        elif re.fullmatch("Array[2-5]D", kind):
            converters[name] = partial(_arrays, features[name].shape)
    return converters


def _contents(decode: bool, column: Any) -> NDArray[Any]:
    """Return the contents of files that a column stores, or whose paths it stores."""
    struct = array_of_column(column)
    fields = zip((each.name for each in struct.type), struct.flatten(), strict=True)
    values = {name: values_of_column(field) for name, field in fields}
    items: list[Any] = []
    for data, path in zip(values["bytes"], values["path"], strict=True):
        if data is None and path is not None:
            with reading(path, "a file of the data set"):
                data = Path(path).read_bytes()
        items.append(decode_image(data, name=path) if decode and data is not None else data)
    return objects(items)


def _arrays(shape: Sequence[int | None], column: Any) -> NDArray[Any]:
    """Return the values of an `Array2D` or similar feature, whose first size may be `None`."""
    rows = flat = array_of_column(column)
    for _ in shape:
        flat = flat.flatten()
    sizes = [size or -1 for size in shape]
    if None not in shape and len(flat) == len(rows) * math.prod(sizes):
        return values_of_column(flat).reshape(len(rows), *sizes)
    dtype = flat.type.to_pandas_dtype()
    items = rows.to_pylist()
    return objects([None if v is None else np.array(v, dtype).reshape(sizes) for v in items])
