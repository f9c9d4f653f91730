from __future__ import annotations

import copyreg
import dataclasses
import dis
import random
import re
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType, FunctionType
from typing import Any, Final, cast

import numpy as np

from towerpack._core.arguments import KeepsArguments, arguments_of

PLAIN: Final = (type(None), bool, int, float, complex, str, range)
# Objects of these libraries hold numbers that differ between starts of a program.
OPAQUE: Final = {"keras", "logging", "tensorflow", "threading", "torch"}
# Methods that change containers. Containers of functions that call them are state, not settings.
CHANGING: Final = {
    *("add", "append", "appendleft", "clear", "extend", "insert", "pop", "popleft"),
    *("setdefault", "update"),
}
_BUILDING: Final = {"__init__", "__new__", "__post_init__", "__setstate__"}
# Objects that are not settings. Variables are in checkpoints.
_NO_SETTINGS: Final = re.compile(r"(logging|threading|_thread|_contextvars)\..*|.*Variable")
_uncompared: ContextVar[dict[str, None] | None] = ContextVar("uncompared", default=None)


@contextmanager
def noting_uncompared() -> Generator[dict[str, None]]:
    """Collect the names of classes whose objects cannot be compared by checksums."""
    names: dict[str, None] = {}
    token = _uncompared.set(names)
    try:
        yield names
    finally:
        _uncompared.reset(token)


def _note(name: str) -> None:
    names = _uncompared.get()
    if names is not None:
        names[name] = None


def is_library(name: str | None) -> bool:
    """Return whether a module is a library, not part of the user's program."""
    if name is None:
        return False
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names - {"__main__"} or top in (*OPAQUE, "towerpack"):
        return True
    path = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" in path or "dist-packages" in path


def codes_in(code: CodeType) -> Iterable[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


def generator_state(value: object) -> Any:
    """Return the state of a random generator, () if it was not seeded, `None` for other values."""
    if isinstance(value, (random.Random, np.random.RandomState)):
        # Their state does not show whether they were seeded.
        process_wide = [cast("Any", f).__self__ for f in (random.random, np.random.random)]
        if value not in process_wide and not isinstance(value, random.SystemRandom):
            _note(type(value).__name__)
        return ()
    bits = value.bit_generator if isinstance(value, np.random.Generator) else value
    if isinstance(bits, np.random.BitGenerator):
        entropy = getattr(bits.seed_seq, "entropy", None)
        if isinstance(entropy, int) and entropy.bit_length() > 64:
            _note(f"{type(value).__name__} (its seed looks drawn by NumPy)")
            return ()
        return bits.state
    cls = type(value)
    if cls.__module__.startswith("tensorflow.") and cls.__name__ == "Generator":
        _note(cls.__name__)  # Its state does not show whether it was seeded.
        return ()
    return None


def configuration_of(value: Any) -> dict[str, Any] | None:
    """Return the configuration of a Keras object, or `None` for other values."""
    cls = cast("Any", type(value))
    if isinstance(value, type) or not callable(getattr(value, "get_config", None)):
        return None
    attributes: dict[str, Any] = getattr(value, "__dict__", {})
    try:
        config: dict[str, Any] = dict(value.get_config())
    except Exception:  # noqa: BLE001 - Keras and the program's classes raise errors of many kinds.
        config = {n: v for n, v in attributes.items() if n[0] != "_" or isinstance(v, dict)}
    config.pop("name", None)
    # Keras omits functions, their arguments, and attributes that the program's methods assign.
    assigned = _assigned_in(cls)
    for name, attribute in attributes.items():
        function = isinstance(attribute, FunctionType) and not is_library(attribute.__module__)
        # Keras wraps the methods of layers.
        if function and hasattr(attribute, "__wrapped__") and name not in assigned:
            continue
        if function or name in assigned or name == "_fn_kwargs":
            config[name] = attribute
    return config


def _without_counts(value: Any, names: dict[str, str]) -> Any:
    """Renumber automatic names of Keras, which Keras counts over the whole process."""
    if isinstance(value, str):
        return names.setdefault(value, f"{re.sub(r'_[0-9]+$', '', value)} {len(names)}")
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return {key: _without_counts(each, names) for key, each in pairs}
    if isinstance(value, list | tuple):
        return [_without_counts(each, names) for each in cast("list[Any]", value)]
    return value


def attributes_of(value: object, *, private: bool = True) -> list[tuple[str, Any]]:
    """Return the attributes of an object, without private ones that methods change later."""
    state: Any = object.__getstate__(value)
    parts = cast("tuple[Any, ...]", state) if isinstance(state, tuple) else (state,)
    attributes = sorted((n, v) for part in parts if part for n, v in part.items())
    if not private:
        return [(n, v) for n, v in attributes if n[0] != "_" or isinstance(v, (*PLAIN, np.ndarray))]
    caches = _caches_in(type(value))
    plain = *PLAIN[1:], np.ndarray  # Without None, which an empty cache may hold.
    return [(n, v) for n, v in attributes if n[0] != "_" or n not in caches or isinstance(v, plain)]


def _caches_in(cls: type) -> set[str]:
    methods = {n: code for c in cls.__mro__[::-1] for n, code in _methods(c)}
    building = _BUILDING & methods.keys()
    while more := {n for b in building for n in methods[b].co_names if n in methods} - building:
        building |= more
    later = [code for name, code in methods.items() if name not in building]
    return {name for method in later for code in codes_in(method) for name in _changed_by(code)}


def _changed_by(code: CodeType) -> Iterator[str]:
    used = list(dis.get_instructions(code))
    for i, instruction in enumerate(used):
        if instruction.opname == "STORE_ATTR":
            yield instruction.argval
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and instruction.argval in CHANGING:
            yield used[i - 1].argval
        elif instruction.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            # The instructions of the key come last and push one value to the stack.
            size, key = 0, i
            while size < 1 and key:
                key -= 1
                size += dis.stack_effect(used[key].opcode, used[key].arg)
            yield used[key - 1].argval


def _assigned_in(cls: type) -> set[str]:
    codes = [code for c in cls.__mro__ for _, method in _methods(c) for code in codes_in(method)]
    used = (instruction for code in codes for instruction in dis.get_instructions(code))
    return {instruction.argval for instruction in used if instruction.opname == "STORE_ATTR"}


def _methods(cls: type) -> list[tuple[str, CodeType]]:
    if is_library(cls.__module__):
        return []
    return [(n, f.__code__) for n, f in vars(cls).items() if isinstance(f, FunctionType)]


def parts_of(value: Any) -> Any:
    """Return the parts of an object to compare: arguments, configuration, state or attributes."""
    cls = cast("Any", type(value))
    if isinstance(value, KeepsArguments) and is_library(cls.__module__):
        return sorted(arguments_of(value).items())
    if (config := configuration_of(value)) is not None:
        return _without_counts(config, {})
    if not is_library(cls.__module__):
        try:
            state = None if cls.__getstate__ is object.__getstate__ else value.__getstate__()
        except Exception:  # noqa: BLE001 - the program's own code may raise any error.
            state = None
        return attributes_of(value) if state is None else state
    if _NO_SETTINGS.fullmatch(f"{cls.__module__}.{cls.__name__}"):
        return ()
    top, _, module = cls.__module__.partition(".")
    if top == "towerpack":  # An augmentor or a record; trainers and towers are not settings.
        record = module.startswith("dataflow") or dataclasses.is_dataclass(cls)
        return attributes_of(value, private=False) if record else ()
    if top not in OPAQUE and (parts := _pickled(value)) is not None:
        return parts
    text = repr(value)
    if not re.search(r"\b0x[0-9a-fA-F]{6,}", text):
        return text
    _note(cls.__name__)
    return ()


def portable_parts_of(value: object) -> Any:
    if not is_library(type(value).__module__):
        return attributes_of(value, private=False)
    # Paths and dates describe themselves. The attributes of a library's object may differ.
    return () if hasattr(value, "__dict__") else re.sub(r"\b0x[0-9a-fA-F]+", "", repr(value))


def _pickled(value: Any) -> Any:
    """Return the parts that a library class passes to pickle, or `None` if it does not pickle."""
    cls = cast("Any", type(value))
    reduce: Any = copyreg.dispatch_table.get(cls)
    methods = "__reduce_ex__", "__reduce__", "__getstate__"
    if reduce is None and all(getattr(cls, m) is getattr(object, m) for m in methods):
        return attributes_of(value, private=False) if hasattr(value, "__dict__") else None
    try:
        reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
    except Exception:  # noqa: BLE001 - each class raises a different error.
        return None
    if isinstance(reduced, str):
        return reduced
    parts = cast("tuple[Any, ...]", reduced)
    make, arguments, state, items, pairs = (*parts, None, None, None)[:5]
    return make, arguments, state, [*(items or ())], [*(pairs or ())]
