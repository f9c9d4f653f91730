"""What tells the data of a source from others, so that a cache of them is not mistaken."""

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
from towerpack.dataflow._user_code import is_ours
from towerpack.dataflow._user_files import PathLike, Strings
from towerpack.dataflow.datapoints import values_of
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


def checksum_of_setting(value: Any) -> str:
    """A checksum over any value, the same in each process that starts with the same program.

    Functions count by their code, defaults, and the values that they refer to; classes by their
    methods; objects by their class and attributes. Of libraries only names count.
    """
    return _sampling_in(True, _content, [value], _DEPTH)[:8]


class _Digest:
    """A checksum, and the functions and classes that are in it already."""

    def __init__(self) -> None:
        self._sum = blake2b(digest_size=16)
        self.update = self._sum.update
        self.hexdigest = self._sum.hexdigest
        self.in_library = False
        self._seen: dict[int, tuple[object, int]] = {}

    def is_new(self, value: object, depth: int) -> bool:
        """Whether the value has not been added yet, or not to this depth."""
        _, before = self._seen.get(id(value), (None, 0))
        if depth > before:
            self._seen[id(value)] = value, depth  # Nothing else may get this id.
        return depth > before


def _content(values: Iterable[Any], depth: int) -> str:
    digest = _Digest()
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
        _feed(
            digest,
            sorted(repr(i) if isinstance(i, plain) else _content([i], depth) for i in items),
            depth,
        )
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
    elif isinstance(value, (FunctionType, type, DataFlow)):  # a pipeline names its flows itself
        digest.update(f"{getattr(value, '__qualname__', 'flow')};".encode())
    elif hasattr(value, "__dict__") and any(map(is_ours, type(value).__mro__)):  # an augmentor
        digest.update(f"{type(value).__qualname__};".encode())
        _feed(digest, attributes_of(value, private=False), depth)
    else:
        length: Any = ""
        with suppress(TypeError, AttributeError):  # some have none, or one that is not known
            length = len(value)
        digest.update(f"{type(value).__qualname__} {length};".encode())


def _constants(code: CodeType) -> tuple[Any, ...]:
    """Return the constants of a code object without a function's docstring."""
    constants = code.co_consts
    is_function = code.co_flags & inspect.CO_NEWLOCALS and code.co_name[0] != "<"
    documented = is_function and constants and isinstance(constants[0], str)
    return (None, *constants[1:]) if documented else constants


def _is_bound(value: Any) -> bool:
    """Whether a value is a built-in method of an object, not of a module or class."""
    unbound = ModuleType, type, type(None)
    return isinstance(value, BuiltinMethodType) and not isinstance(value.__self__, unbound)


def _feed_object(digest: _Digest, value: Any, depth: int) -> None:
    cls = cast("Any", type(value))
    library = is_library(cls.__module__)
    _feed_named(digest, cls, depth)
    if isinstance(value, ModuleType) or not digest.is_new(value, depth):
        return
    if _portable.get():  # Libraries may keep what differs between machines.
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
    """The values of the closure, and of the program's globals, that a function reads."""
    code = function.__code__
    codes = [*codes_in(code)]
    used = [i for c in codes for i in dis.get_instructions(c)]
    assigned = {i.argval for i in used if i.opname in ("STORE_DEREF", "STORE_GLOBAL")}
    found: dict[str, Any] = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # the variable has no value yet
            found[name] = cell.cell_contents
    if not is_library(function.__module__):
        names = sorted({i.argval for i in used if i.opname == "LOAD_GLOBAL"})
        found |= {n: function.__globals__[n] for n in names if n in function.__globals__}
        modules = [v for v in found.values() if isinstance(v, ModuleType)]
        named = sorted({name for c in codes for name in c.co_names})
        for module in modules:
            if not is_library(module.__name__):
                found |= {
                    f"{module.__name__}.{n}": vars(module)[n] for n in named if n in vars(module)
                }
    state: Any = (list, dict, set) if any(CHANGING & {*c.co_names} for c in codes) else ()
    return [
        value
        for name, value in found.items()
        if name not in assigned and not isinstance(value, (ModuleType, type(os.environ), state))
    ]


def _is_tensor(value: Any) -> bool:
    """Whether a value is an eager tensor of TensorFlow: no variable, and none of a graph."""
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
    for start in range(0, len(rows), step):  # an array that is mapped is not read as a whole
        digest.update(rows[start : start + step].tobytes())


def _is_parallel(flow: DataFlow | Described) -> bool:
    return isinstance(flow, ParallelStage)


def serial_pipeline_of(flow: DataFlow) -> str:
    """`pipeline_of` without the parallel stages, which change no datapoint."""
    return pipeline_of(flow, leave_out=_is_parallel)


def functions_of(flow: DataFlow) -> str:
    """A checksum over the code of a pipeline's functions, and over public attributes."""
    return _sampling_in(True, _functions_in, flows_in(flow))


def _functions_in(flows: Iterable[DataFlow]) -> str:
    found: list[Any] = []
    for here in flows:
        functions: Any = FunctionType, MethodType, partial
        attributes = sorted(vars(here).items())
        given = [v for k, v in attributes if k[0] != "_" or isinstance(v, functions)]
        if _is_parallel(here):  # how many workers there are changes no datapoint
            given = [v for v in given if callable(v)]
        elif isinstance(here, Stage):  # its numbers stand in its description
            given = [v for v in given if not isinstance(v, _TOLD)]
        found += [v for v in given if not isinstance(v, DataFlow)]
        if not is_library(type(here).__module__):
            found.append(type(here))
    return _content(found, _DEPTH)


def content_of(flow: DataFlow, *, sample: bool = False) -> str:
    """Description of a flow's stages but the parallel ones, and of (a sample of) their data."""
    return _sampling_in(sample, pipeline_of, flow, _content_of_stage, _is_parallel)


def _content_of_stage(stage: Described) -> str:
    """Describe a stage, and add a checksum over its arguments, so that none can be forgotten."""
    if stage.transparent or not isinstance(stage, KeepsArguments):
        return stage.content()
    arguments = arguments_of(stage).items()
    settings = [pair for pair in arguments if pair[0] not in stage.without_effect]
    return f"{stage.content()}, {content_of_values(*settings)}"


def sources_of(flow: DataFlow) -> tuple[str, str]:
    """Checksums of (a sample of) a pipeline's data and their first component ("" if unknown).

    The same on every machine that has the data.
    """
    return _on_any_machine(os.path.basename, _sources_of, flow)


def stages_of(flow: DataFlow) -> tuple[str, str]:
    """Stages of a pipeline and a checksum over their functions, the same on every machine.

    Shards and what only changes the speed are left out.
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
            name = name_of_stage(here, lambda stage: stage.content())
            told += [name, _content(functions, _DEPTH)]
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
