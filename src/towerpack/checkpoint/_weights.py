import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from towerpack._core.errors import CheckpointError
from towerpack._core.remote_path import is_url
from towerpack.checkpoint._find_and_read import Checkpoint, load_checkpoint
from towerpack.checkpoint._manifest import InvalidCheckpointError
from towerpack.checkpoint.tensors import Tensors
from towerpack.checkpoint.torch_file import check_size


def read_weights(source: Any) -> tuple[str, Mapping[str, np.ndarray]]:
    """Read arrays from a checkpoint, a file or a dict. Return a description, and arrays by name.

    Args:
        source: Run directory (its newest valid checkpoint), one checkpoint, a safetensors or npz
            file, URL of a run or checkpoint, or a dict of arrays. A `:0` at the end of a name is
            dropped.

    Raises:
        CheckpointError: The source is not one of these, is damaged, or contains pickled data.
    """
    if isinstance(source, Checkpoint):
        return str(source.path), source.model
    if isinstance(source, Mapping):
        return "the given dict", _named(cast("Mapping[Any, Any]", source))
    if not isinstance(source, str | os.PathLike):
        raise CheckpointError(
            "Weights must be a path, a Checkpoint, or a dict of arrays by name, got "
            f"{type(source).__name__} {source!r:.80}."
        )
    path = Path(name := os.fspath(cast("str", source)))
    if is_url(name):
        return name, load_checkpoint(name).model
    if path.suffix == ".safetensors":
        try:
            return str(path), Tensors(path)
        except InvalidCheckpointError as error:
            raise CheckpointError(f"{path} is not a valid safetensors file: {error}.") from error
    if path.suffix == ".npz":
        return str(path), _named(_read_npz(path))
    if path.is_dir():
        checkpoint = load_checkpoint(path)
        return str(checkpoint.path), checkpoint.model
    raise CheckpointError(
        f"{path} contains no weights." if path.exists() else f"{path} does not exist.",
        expected="a run directory, a checkpoint, or a .safetensors or .npz file",
    )


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            if isinstance(arrays, np.ndarray):
                raise ValueError("it holds one array without a name")
            sizes = (entry.file_size for entry in arrays.zip.infolist())
            check_size(sizes, path.stat().st_size)
            return dict(arrays)
    except Exception as error:  # damage raises errors of many kinds
        raise CheckpointError(
            f"{path} cannot be read: {error}.", fix="save numeric arrays with np.savez()"
        ) from error


def _named(arrays: Mapping[Any, Any]) -> dict[str, np.ndarray]:
    return {str(name).removesuffix(":0"): np.asarray(value) for name, value in arrays.items()}
