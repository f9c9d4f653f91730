import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._core.files import replace_file


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write named arrays to an npz file atomically, without pickle.

    Object arrays are stored as bytes, and dtypes that NumPy lacks (bfloat16) as float32.
    """
    # `np.savez` takes names as keywords, and reserves the name 'file'.
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _plain(array), allow_pickle=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, buffer.getvalue())


def _plain(value: Any) -> np.ndarray:
    array: np.ndarray = np.asarray(value)
    if array.dtype == object:
        return array.astype(np.bytes_)
    if array.dtype.kind == "V":  # bfloat16 and float8 are not NumPy dtypes; float32 holds them.
        return array.astype(np.float32)
    return array
