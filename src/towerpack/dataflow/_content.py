"""What tells the data of a source from others, so that a cache of them is not mistaken."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar, copy_context
from hashlib import blake2b
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow._datapoints import values_of
from towerpack.dataflow._flow import DataFlow, ParallelStage, Stage, flows_in, pipeline_of
from towerpack.dataflow._opening import PathLike, Strings

_WRITTEN_OUT: Final = (type(None), bool, int, float, complex, str, range)
_PIECE_BYTES: Final = 16 << 20
_SAMPLES: Final = 64
_DEPTH: Final = 6
# Their objects hold numbers that differ from start to start.
_OPAQUE: Final = {"keras", "logging", "tensorflow", "threading", "torch"}
_TOLD: Final = (type(None), bool, int, float, str, np.ndarray)  # in descriptions of stages
_sampling: ContextVar[bool] = ContextVar("sampling", default=False)
# Set where directories and times of files may differ between machines: what counts of a text.
_portable: ContextVar[Callable[[str], str] | None] = ContextVar("portable", default=None)


def _some(items: Any) -> Any:
    return items[:: len(items) // _SAMPLES + 1] if _sampling.get() else items


def content_of_files(paths: Iterable[PathLike]) -> str:
    """A checksum over where files lie, how large they are and when they were last written."""
    digest = blake2b(digest_size=16)
    for path in _some(list(paths)):
        where = os.path.realpath(path)
        if _portable.get():
            digest.update(_pieces_of(where))
            continue
        try:
            found = os.stat(where)
        except OSError:
            told = "nothing there"
        else:
            told = f"{found.st_size} {found.st_mtime_ns}"
        digest.update(f"{where!r} {told};".encode("ascii", "backslashreplace"))
    return digest.hexdigest()


def _pieces_of(path: str) -> bytes:
    """Name and size of a file, and bytes from eight places in it."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            pieces: list[bytes] = []
            for i in range(8):
                file.seek(i * size // 8)
                pieces.append(file.read(4096))
    except OSError:
        return b"nothing there"
    return b";".join([os.path.basename(path).encode(errors="replace"), b"%d" % size, *pieces])


def content_of_values(*values: Any) -> str:
    """A checksum over arrays, plain values and containers of them; of others, over their types."""
    return _content(values, 0)


def _content(values: Iterable[Any], depth: int) -> str:
    digest = blake2b(digest_size=16)
    for value in values:
        _feed(digest, value, depth)
    return digest.hexdigest()


def _feed(digest: Any, value: Any, depth: int) -> None:
    """Add a value; below `depth` containers and objects, nothing is seen of code and objects."""
    inside = max(0, depth - 1)
    portable = _portable.get()
    if isinstance(value, (np.ndarray, np.generic)):
        _feed_array(digest, np.asarray(cast("Any", value)))
    elif depth and portable and isinstance(cast("object", value), (str, PurePath)):
        digest.update(f"{portable(str(value))!r};".encode("ascii", "backslashreplace"))
    elif isinstance(value, _WRITTEN_OUT):
        digest.update(f"{type(value).__name__} {value!r};".encode("ascii", "backslashreplace"))
    elif isinstance(value, (bytes, bytearray)):
        digest.update(b"bytes %d:" % len(value) + value)
    elif isinstance(value, (list, tuple, Strings)):
        _feed_items(digest, cast("object", value), cast("Sequence[Any]", value), inside)
    elif isinstance(value, Mapping):
        pairs = list(cast("Mapping[Any, Any]", value).items())
        _feed_items(digest, cast("object", value), pairs, inside)
    elif isinstance(value, CodeType):
        digest.update(value.co_code + repr(value.co_names).encode())
        _feed(digest, value.co_consts, depth)
    elif depth and isinstance(value, (set, frozenset)):
        digest.update(repr(sorted(map(repr, cast("set[Any]", value)))).encode())
    elif depth and isinstance(value, MethodType):
        _feed(digest, (value.__func__, value.__self__), depth)
    elif depth and isinstance(value, FunctionType):
        cells: list[Any] = []
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # the variable has no value yet
                cells.append(cell.cell_contents)
        if portable:
            names = [value.__globals__.get(name) for name in value.__code__.co_names]
            cells += [v for v in names if isinstance(v, (bool, int, float, np.ndarray))]
        parts = value.__code__, value.__defaults__, value.__kwdefaults__, *cells
        _feed(digest, parts, depth)
    elif depth and _has_attributes(value):
        digest.update(type(value).__qualname__.encode())
        attributes = sorted(vars(cast("object", value)).items())
        _feed(digest, [(name, inner) for name, inner in attributes if name[0] != "_"], depth)
    else:
        length = len(value) if hasattr(value, "__len__") else ""
        digest.update(f"{type(value).__qualname__} {length};".encode())


def _has_attributes(value: Any) -> bool:
    library = type(value).__module__.partition(".")[0] in _OPAQUE
    return hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType)) and not library


def _feed_items(digest: Any, container: object, items: Sequence[Any], depth: int) -> None:
    digest.update(f"{type(container).__name__} of {len(items)};".encode())
    for item in _some(items):
        _feed(digest, item, depth)


def _feed_array(digest: Any, array: NDArray[Any]) -> None:
    digest.update(f"array {array.dtype.descr!r} {array.shape};".encode())
    if array.dtype.hasobject:
        _feed_items(digest, array, array.ravel().tolist(), 0)
        return
    rows = _some(array.reshape(1) if array.ndim == 0 else array)
    step = max(1, _PIECE_BYTES // max(1, array.nbytes // max(1, len(rows))))
    for start in range(0, len(rows), step):  # an array that is mapped is not read as a whole
        digest.update(rows[start : start + step].tobytes())


def _is_parallel(flow: DataFlow) -> bool:
    return isinstance(flow, ParallelStage)


def serial_pipeline_of(flow: DataFlow) -> str:
    """`pipeline_of` without the parallel stages, which change no datapoint."""
    return pipeline_of(flow, passed_over=_is_parallel)


def functions_of(flow: DataFlow) -> str:
    """A checksum over the code of a pipeline's functions, and over public attributes."""
    return _sampling_in(True, _functions_in, flows_in(flow))


def _functions_in(flows: Iterable[DataFlow]) -> str:
    found: list[Any] = []
    for here in flows:
        given = [v for k, v in sorted(vars(here).items()) if k[0] != "_"]
        if _is_parallel(here):  # how many workers there are changes no datapoint
            given = [v for v in given if callable(v)]
        elif isinstance(here, Stage):  # its numbers stand in its description
            given = [v for v in given if not isinstance(v, _TOLD)]
        found += [v for v in given if not isinstance(v, DataFlow)]
    return _content(found, _DEPTH)


def content_of(flow: DataFlow, *, sample: bool = False) -> str:
    """Description of a flow's stages but the parallel ones, and of (a sample of) their data."""
    return _sampling_in(sample, pipeline_of, flow, "content", _is_parallel)


def sources_of(flow: DataFlow) -> tuple[str, str]:
    """Checksums of (a sample of) the data that a pipeline reads, and of its first component.

    The same on every machine that has the data. The second is "" if it is not known.
    """
    return _on_any_machine(os.path.basename, _sources_of, flow)


def stages_of(flow: DataFlow) -> tuple[str, str]:
    """Description of what a pipeline does with its data, and a checksum over its functions.

    The same on every machine. Shards and what only changes the speed are left out.
    """
    stages = [f for f in flows_in(flow) if isinstance(f, Stage) and f.inputs and not f.shard]
    told = [
        type(f).__name__ + ("" if hasattr(f, "path") else f"({f.arguments()})")
        for f in stages
        if not _is_parallel(f)
    ]
    return " > ".join(reversed(told)), _on_any_machine(lambda _: "", _functions_in, stages)


def _sources_of(flow: DataFlow) -> tuple[str, str]:
    told: list[Any] = []
    first: list[Any] = []
    for here in flows_in(flow):
        if not isinstance(here, Stage):  # a class of the user's, which may be one part of many
            own = [v for k, v in sorted(vars(here).items()) if not k.startswith("_DataFlow__")]
            told += [type(here).__qualname__, _content(own, _DEPTH)]
            first.append(())
        elif not here.inputs:
            functions: list[Any] = [v for v in vars(here).values() if callable(v)]
            told += [pipeline_of(here, "content"), _content(functions, _DEPTH)]
            first.append(_first_component(here))
    return _content(told, 0), _content(first, 0) if first and all(map(len, first)) else ""


def _first_component(source: DataFlow) -> Sequence[Any]:
    data: Any = getattr(getattr(source, "_held", None), "data", None)
    if data is not None:
        return next(iter(values_of(data)), ())
    items: Sequence[Any] = _some(getattr(source, "lst", ()))
    return [dp[0] for dp in items if isinstance(dp, (list, tuple)) and dp]


def _on_any_machine(text: Callable[[str], str], f: Callable[..., Any], *arguments: Any) -> Any:
    context = copy_context()
    context.run(_portable.set, text)
    return context.run(_sampling_in, True, f, *arguments)


def _sampling_in(sample: bool, f: Callable[..., Any], *arguments: Any) -> Any:
    """Call `f`; with `sample`, only some rows, items or files of long data count, evenly spread."""
    context = copy_context()
    context.run(_sampling.set, sample)
    return context.run(f, *arguments)
