"""Checksums of data, functions and settings, which identify cached data and saved states."""

from __future__ import annotations

import dis
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from hashlib import blake2b
from pathlib import PurePath
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.arguments import KeepsArguments, arguments_of
from towerpack.dataflow._compile import ParallelStage, Stage
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._plan import Node
from towerpack.dataflow._remote_files import RemoteFile
from towerpack.dataflow._user_code import is_in_towerpack
from towerpack.dataflow._user_files import PathLike, Strings
from towerpack.dataflow.datapoints import to_rows, values_of
from towerpack.dataflow.object_parts import (
    CHANGING,
    OPAQUE,
    PLAIN,
    attributes_of,
    codes_in,
    generator_state,
    is_library,
    parts_of,
    portable_parts_of,
)
from towerpack.dataflow.pipeline_names import Described, flows_in, name_of_stage, pipeline_of

_PIECE_BYTES: Final = 16 << 20
_SAMPLES: Final = 64
_FEW: Final = 1000  # Items, or KiB of an array, that are never sampled.
_DEPTH: Final = 12
_DESCRIBED: Final = (type(None), bool, int, float, str, np.ndarray)  # in descriptions of stages
_sampling: ContextVar[bool] = ContextVar("sampling", default=False)
# Set if checksums must agree between machines: maps a text to its part that does.
_portable: ContextVar[Callable[[str], str] | None] = ContextVar("portable", default=None)


def _some(items: Any) -> Any:
    return items[:: len(items) // _SAMPLES + 1] if _sampling.get() else items


def content_of_files(paths: Iterable[PathLike | RemoteFile]) -> str:
    """Return a checksum of the paths, sizes and modification times (or ETags) of files."""
    digest = blake2b(digest_size=16)
    for given_path in _some(list(paths)):
        if isinstance(given_path, RemoteFile):
            digest.update(f"{given_path.content};".encode())
            continue
        path = os.path.realpath(given_path)
        if _portable.get():
            digest.update(_pieces_of(path))
            continue
        try:
            status = os.stat(path)
            text = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:
            text = "nothing there"
        digest.update(f"{path!r} {text};".encode("ascii", "backslashreplace"))
    return digest.hexdigest()


def _pieces_of(path: str) -> bytes:
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
    """Return a checksum of arrays, plain values, containers, and the types of other objects."""
    return _content(values, 0)


def content_of_rows(node: Node, *, sample: bool = False) -> str:
    """Return a checksum of the rows of a source, or with `sample` of evenly spread rows."""
    if sample:
        return _sampling_in(True, content_of_rows, node)
    rows = np.array(_some(range(node.size or 0)), np.int64)
    blocks = (node.read(0, rows[i : i + _FEW]) for i in range(0, len(rows), _FEW))
    return _content((row for block in blocks for row in to_rows(block)), _DEPTH)


def checksum_of_setting(value: Any) -> str:
    """Return a checksum of any value, which is the same in all processes of one program.

    Functions are compared by code, defaults and the values that they refer to, classes by methods,
    objects by class and attributes. Functions and classes of libraries are compared by name.
    """
    return _sampling_in(True, _content, [value], _DEPTH)[:8]


class _Digest:
    """Checksum that adds each function, class and object only once."""

    def __init__(self) -> None:
        self._sum = blake2b(digest_size=16)
        self.update = self._sum.update
        self.hexdigest = self._sum.hexdigest
        self.in_library = False
        self._seen: dict[int, tuple[object, int]] = {}

    def is_new(self, value: object, depth: int) -> bool:
        _, before = self._seen.get(id(value), (None, 0))
        if depth > before:
            self._seen[id(value)] = value, depth  # Keeps the object, so that its id stays unique.
        return depth > before


def _content(values: Iterable[Any], depth: int) -> str:
    digest = _Digest()
    for value in values:
        _feed(digest, value, depth)
    return digest.hexdigest()


def _feed(digest: Any, value: Any, depth: int) -> None:
    """Add a value to a digest. Code and objects nested deeper than `depth` are ignored."""
    inside = max(0, depth - 1)
    portable = _portable.get()
    if isinstance(value, (np.ndarray, np.generic)):
        _feed_array(digest, np.asarray(cast("Any", value)))
    elif depth and portable and isinstance(cast("object", value), (str, PurePath)):
        digest.update(f"{portable(str(value))!r};".encode("ascii", "backslashreplace"))
    elif isinstance(value, PLAIN):
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
        _feed(digest, _constants(value), depth)
    elif depth and isinstance(value, (set, frozenset)):
        items = cast("set[Any]", value)
        plain = *PLAIN, bytes
        texts = [repr(i) if isinstance(i, plain) else _content([i], depth) for i in items]
        _feed(digest, sorted(texts), depth)
    elif depth and isinstance(value, MethodType):
        _feed(digest, (value.__func__, value.__self__), depth)
    elif depth and _is_bound(value):
        _feed(digest, (value.__name__, value.__self__), depth)
    elif isinstance(value, partial):
        _feed(digest, (value.func, value.args, value.keywords), depth)
    elif depth and isinstance(value, (FunctionType, type)):
        _feed_named(digest, value, depth)
    elif depth and isinstance(value, (classmethod, staticmethod, property)):
        method = cast("Any", value)
        _feed(digest, method.fget if isinstance(value, property) else method.__func__, depth)
    elif depth and hasattr(value, "__wrapped__"):  # such as a tf.function
        _feed(digest, value.__wrapped__, depth)
    elif depth and _is_tensor(value):
        _feed_array(digest, np.asarray(value.numpy()))
    elif depth:
        _feed_object(digest, value, depth)
    elif isinstance(value, (FunctionType, type, DataFlow)):  # pipelines describe their flows
        digest.update(f"{getattr(value, '__qualname__', 'flow')};".encode())
    elif hasattr(value, "__dict__") and any(
        map(is_in_towerpack, type(value).__mro__)
    ):  # an augmentor
        digest.update(f"{type(value).__qualname__};".encode())
        _feed(digest, attributes_of(value, private=False), depth)
    else:
        length: Any = ""
        with suppress(TypeError, AttributeError):  # the length may be unknown
            length = len(value)
        digest.update(f"{type(value).__qualname__} {length};".encode())


def _constants(code: CodeType) -> tuple[Any, ...]:
    constants = code.co_consts
    is_function = code.co_flags & inspect.CO_NEWLOCALS and code.co_name[0] != "<"
    documented = is_function and constants and isinstance(constants[0], str)
    return (None, *constants[1:]) if documented else constants


def _is_bound(value: Any) -> bool:
    unbound = ModuleType, type, type(None)
    return isinstance(value, BuiltinMethodType) and not isinstance(value.__self__, unbound)


def _feed_object(digest: _Digest, value: Any, depth: int) -> None:
    cls = cast("Any", type(value))
    library = is_library(cls.__module__)
    _feed_named(digest, cls, depth)
    if isinstance(value, ModuleType) or not digest.is_new(value, depth):
        return
    if _portable.get():
        parts = portable_parts_of(value)
    elif isinstance(value, DataFlow):
        parts = content_of(value, sample=True), functions_of(value)
    elif (state := generator_state(value)) is not None:
        parts = () if digest.in_library else state
    else:
        parts = parts_of(value)
    outside = digest.in_library
    top = cls.__module__.partition(".")[0]
    digest.in_library = outside or (library and top not in sys.stdlib_module_names)
    _feed(digest, parts, depth)
    digest.in_library = outside


def _feed_named(digest: Any, value: Any, depth: int) -> None:
    digest.update(f"{value.__qualname__.rpartition('.')[2]};".encode())
    if not digest.is_new(value, depth):
        return
    library = is_library(value.__module__)
    if isinstance(value, type):
        if not library:
            members = [(n, v) for n, v in sorted(vars(value).items()) if _is_member(n, v)]
            _feed(digest, [*members, value.__bases__], depth)
    elif not library:
        parts = value.__code__, value.__defaults__, value.__kwdefaults__, *_referred(value)
        _feed(digest, parts, depth)
    elif value.__module__.partition(".")[0] not in OPAQUE:
        _feed(digest, (value.__defaults__, *_referred(value)), depth)


def _is_member(name: str, value: Any) -> bool:
    special = name[:2] == "__" and not callable(value)
    return not special and not name.startswith("_abc_")


def _referred(function: FunctionType) -> list[Any]:
    """Return the values of a function's closure, and the program's globals that it reads."""
    code = function.__code__
    codes = [*codes_in(code)]
    used = [i for c in codes for i in dis.get_instructions(c)]
    assigned = {i.argval for i in used if i.opname in ("STORE_DEREF", "STORE_GLOBAL")}
    values: dict[str, Any] = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # the variable has no value yet
            values[name] = cell.cell_contents
    if not is_library(function.__module__):
        names = sorted({i.argval for i in used if i.opname == "LOAD_GLOBAL"})
        values |= {n: function.__globals__[n] for n in names if n in function.__globals__}
        names = sorted({name for c in codes for name in c.co_names})
        for module in [v for v in values.values() if isinstance(v, ModuleType)]:
            if not is_library(module.__name__):
                attributes = vars(module)
                values |= {
                    f"{module.__name__}.{n}": attributes[n] for n in names if n in attributes
                }
    state: Any = (list, dict, set) if any(CHANGING & {*c.co_names} for c in codes) else ()
    excluded = ModuleType, type(os.environ), state
    return [v for n, v in values.items() if n not in assigned and not isinstance(v, excluded)]


def _is_tensor(value: Any) -> bool:
    return type(value).__name__ == "EagerTensor" and value.dtype.name not in ("resource", "variant")


def _feed_items(digest: Any, container: object, items: Sequence[Any], depth: int) -> None:
    digest.update(f"{type(container).__name__} of {len(items)};".encode())
    for item in _some(items) if len(items) > _FEW else items:
        _feed(digest, item, depth)


def _feed_array(digest: Any, array: NDArray[Any]) -> None:
    digest.update(f"array {array.dtype.descr!r} {array.shape};".encode())
    if array.dtype.hasobject:
        _feed_items(digest, array, array.ravel().tolist(), 0)
        return
    rows = array.reshape(1) if array.ndim == 0 else array
    rows = _some(rows) if array.nbytes > _FEW << 10 else rows
    step = max(1, _PIECE_BYTES // max(1, array.nbytes // max(1, len(rows))))
    for start in range(0, len(rows), step):  # in pieces, since the array may be a mapped file
        digest.update(rows[start : start + step].tobytes())


def _is_parallel(flow: DataFlow | Described) -> bool:
    return isinstance(flow, ParallelStage)


def serial_pipeline_of(flow: DataFlow) -> str:
    """Return the name of a pipeline without parallel stages, which do not change datapoints."""
    return pipeline_of(flow, leave_out=_is_parallel)


def functions_of(flow: DataFlow) -> str:
    """Return a checksum of the code of a pipeline's functions and its public attributes."""
    return _sampling_in(True, _functions_in, flows_in(flow))


def _functions_in(flows: Iterable[DataFlow]) -> str:
    values: list[Any] = []
    for flow in flows:
        functions: Any = FunctionType, MethodType, partial
        attributes = sorted(vars(flow).items())
        settings = [v for k, v in attributes if k[0] != "_" or isinstance(v, functions)]
        if _is_parallel(flow):  # the number of workers does not change datapoints
            settings = [v for v in settings if callable(v)]
        elif isinstance(flow, Stage):  # numbers are part of its description
            settings = [v for v in settings if not isinstance(v, _DESCRIBED)]
        values += [v for v in settings if not isinstance(v, DataFlow)]
        if not is_library(type(flow).__module__):
            values.append(type(flow))
    return _content(values, _DEPTH)


def content_of(flow: DataFlow, *, sample: bool = False) -> str:
    """Describe the stages and data of a flow. `sample` reads only a part of large data."""
    return _sampling_in(sample, pipeline_of, flow, _content_of_stage, _is_parallel)


def _content_of_stage(stage: Described) -> str:
    if stage.transparent or not isinstance(stage, KeepsArguments):
        return stage.content()
    arguments = arguments_of(stage).items()
    settings = [pair for pair in arguments if pair[0] not in stage.without_effect]
    return f"{stage.content()}, {content_of_values(*settings)}"


def sources_of(flow: DataFlow) -> tuple[str, str]:
    """Return checksums of a sample of a flow's data, and of its first component if known.

    The checksums are the same on all machines. An unknown first component gives "".
    """
    return _on_any_machine(os.path.basename, _sources_of, flow)


def stages_of(flow: DataFlow) -> tuple[str, str]:
    """Return the names of a pipeline's stages and a checksum of their functions.

    Both are the same on all machines. Shards and stages that only change the speed are left out.
    """
    stages = [f for f in flows_in(flow) if isinstance(f, Stage) and f.inputs and not f.shard]
    names = [
        type(f).__name__ + ("" if hasattr(f, "path") else f"({f.arguments()})")
        for f in stages
        if not _is_parallel(f)
    ]
    return " > ".join(reversed(names)), _on_any_machine(lambda _: "", _functions_in, stages)


def _sources_of(flow: DataFlow) -> tuple[str, str]:
    values: list[Any] = []
    first: list[Any] = []
    for source in flows_in(flow):
        if not isinstance(source, Stage):  # a user-written class
            settings = [v for k, v in sorted(vars(source).items()) if k[:11] != "_DataFlow__"]
            values += [type(source).__qualname__, _content(settings, _DEPTH)]
            first.append(())
        elif not source.inputs:
            functions: list[Any] = [v for v in vars(source).values() if callable(v)]
            name = name_of_stage(source, lambda stage: stage.content())
            values += [name, _content(functions, _DEPTH)]
            first.append(_first_component(source))
    return _content(values, 0), _content(first, 0) if first and all(map(len, first)) else ""


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
    """Call `f`. With `sample`, checksums cover evenly spread rows, items or files of long data."""
    context = copy_context()
    context.run(_sampling.set, sample)
    return context.run(f, *arguments)
