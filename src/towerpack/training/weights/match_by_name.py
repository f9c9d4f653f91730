"""Initial weights from elsewhere, matched by name; the log says what became of each."""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from towerpack._core.errors import CheckpointMismatchError
from towerpack._core.logs import get_logger
from towerpack._core.naming import did_you_mean
from towerpack.training.weights.read_foreign import read_arrays

_LOG = get_logger(__name__)
_SHOWN: Final = 30
# Names of the predecessor's layers, and of slim's.
_SUCCESSORS: Final = {
    "W": "kernel",
    "b": "bias",
    "mean/EMA": "moving_mean",
    "variance/EMA": "moving_variance",
    "weights": "kernel",
    "biases": "bias",
}
# What a checkpoint of a run holds besides weights; a new run has its own.
_OF_A_RUN: Final = ("learning_rate", "global_step", "seed_generator_state")

Rename = Mapping[str, str] | Callable[[str], str | None]


class SmartInit:
    """Weights that a run starts from, matched by name with the model's variables.

        TrainConfig(…, init=SmartInit('runs/pretrained', ignore_mismatch=True))

    A value's shape must be its variable's, but for sizes of 1; floats are converted to floats.
    Names of the predecessor's layers (`conv0/W`, `bn0/mean/EMA`) and of slim's (`fc/weights`) find
    their successors. A file of Keras does not say where its model hangs in ours: a name there is
    for the one variable that it ends the name of (`conv1/kernel` for `backbone/conv1/kernel`). The
    log lists what was loaded, what of the model got no value, and what of the source was not used.

    Args:
        source: A run directory (its newest valid checkpoint), one checkpoint, a `.safetensors` or
            `.npz` file, a checkpoint of TensorFlow, a file of Keras (`.keras`, `.weights.h5`,
            `.h5`), a name in `towerpack.zoo.PRETRAINED`, or a dict of arrays by name. A list is
            gone through in order, the last value counts. Nothing for None or ''.
        skip: A regular expression, or several, for whole names of variables of the model that keep
            their initial values: `'fc/.*'`, for other classes.
        ignore_mismatch: Leave out what has another shape or type, instead of refusing.
        rename: Names in the source to names in the model, as a dict; or a function of the former,
            None from which leaves a value out.
    """

    def __init__(
        self,
        source: Any,
        *,
        skip: str | Sequence[str] = (),
        ignore_mismatch: bool = False,
        rename: Rename | None = None,
    ) -> None:
        several = isinstance(source, Sequence) and not isinstance(source, str | bytes)
        self._sources = list(source) if several else [source]
        self._skip = [skip] if isinstance(skip, str) else list(skip)
        self._ignore_mismatch = ignore_mismatch
        self._rename = rename

    def paths(self) -> list[Path]:
        """Files and directories that it reads."""
        found: list[Path] = []
        for source in self._sources:
            if isinstance(source, SmartInit):
                found += source.paths()
            elif isinstance(source, str | os.PathLike) and os.fspath(source):
                found.append(Path(source))
        return found

    def load(self, variables: Mapping[str, Any]) -> set[str]:
        """Set variables of a model, by name; gives the names of those that got a value.

        Raises:
            CheckpointError: A source cannot be read.
            CheckpointMismatchError: A value does not fit its variable, or no name of a source is
                the model's, or a `skip=` matches no variable.
        """
        skipped = self._skipped(variables)
        loaded: set[str] = set()
        for source in self._sources:
            if isinstance(source, SmartInit):
                loaded |= source.load({n: v for n, v in variables.items() if n not in skipped})
            elif source is not None and not (isinstance(source, str) and not source):
                what, values, is_part = read_arrays(source)
                loaded |= self._load(what, values, variables, skipped, is_part)
        return loaded

    def _skipped(self, variables: Mapping[str, Any]) -> set[str]:
        found: set[str] = set()
        for regex in self._skip:
            matching = {name for name in variables if re.fullmatch(regex, name)}
            if not matching:
                raise CheckpointMismatchError(
                    f"SmartInit(skip={regex!r}) matches no variable of the model.",
                    expected="an expression for whole names, such as 'fc/.*'",
                    fix=did_you_mean(regex, variables),
                )
            found |= matching
        return found

    def _load(
        self,
        what: str,
        values: Mapping[str, Any],
        variables: Mapping[str, Any],
        skipped: set[str],
        is_part: bool,
    ) -> set[str]:
        self._check_names(what, values)
        found = _Matches()
        for name in values:
            target = self._target(name, values, variables, is_part)
            if target is None:
                found.unused.append(name)
                continue
            if target in skipped:
                continue
            if target in found.loaded:
                found.unfit.append(
                    f"{target}: {found.loaded[target][0]} and {name} are both for it"
                )
                continue
            array, variable = values[name], variables[target]
            fitting = _fitted(array, tuple(variable.shape), np.dtype(variable.dtype.as_numpy_dtype))
            if fitting is None:
                got, wanted = _text(array.shape, array.dtype), _spec(variable)
                found.unfit.append(f"{target}: {name} is {got}, needs {wanted}")
            else:
                found.loaded[target] = (name, fitting)
        without = variables.keys() - found.loaded.keys() - skipped
        missing = [name for name in variables if name in without and _is_weight(name)]
        found.skipped = [name for name in variables if name in skipped]
        self._check(what, found, values, missing)
        for target, (_, value) in found.loaded.items():
            variables[target].assign(value)
        found.tell(what, variables, missing)
        return set(found.loaded)

    def _target(
        self, name: str, values: Mapping[str, Any], variables: Mapping[str, Any], is_part: bool
    ) -> str | None:
        """The variable that a value is for."""
        renamed: str | None = name
        if isinstance(self._rename, Mapping):
            renamed = self._rename.get(name, name)
        elif self._rename is not None:
            renamed = self._rename(name)
        if renamed is None or not _is_weight(renamed):
            return None
        if renamed in variables:
            return renamed
        for old, new in _SUCCESSORS.items():
            successor = renamed.removesuffix(old) + new
            if renamed.endswith(f"/{old}") and successor in variables and successor not in values:
                return successor
        return _of_keras(renamed, variables) if is_part else None

    def _check_names(self, what: str, values: Mapping[str, Any]) -> None:
        if isinstance(self._rename, Mapping) and len(self._sources) == 1:
            for name in self._rename:
                if name not in values:
                    raise CheckpointMismatchError(
                        f"rename= names '{name}', which {what} does not have.",
                        fix=did_you_mean(name, values),
                    )

    def _check(
        self, what: str, found: _Matches, values: Mapping[str, Any], missing: list[str]
    ) -> None:
        if found.unfit and not self._ignore_mismatch:
            raise CheckpointMismatchError(
                f"Values in {what} do not fit the model.",
                got="\n".join(found.unfit[:_SHOWN]),
                fix="SmartInit(…, ignore_mismatch=True) leaves them out; rename= maps names",
            )
        if not found.loaded and not found.unfit:
            close = difflib.get_close_matches(missing[0], values, n=1) if missing else []
            raise CheckpointMismatchError(
                f"Nothing in {what} has the name of a variable of the model.",
                got=_listed(values),
                expected=_listed(missing),
                fix="SmartInit(…, rename={" + f"{close[0]!r}: {missing[0]!r}" + "})"
                if close
                else "SmartInit(…, rename=…) maps names",
            )

    def __repr__(self) -> str:
        plain = (str, os.PathLike, SmartInit)
        shown = [s if isinstance(s, plain) else type(s).__name__ for s in self._sources]
        return f"SmartInit({', '.join(map(str, shown))})"


@dataclass
class _Matches:
    """What came of the values of one source."""

    loaded: dict[str, tuple[str, np.ndarray]] = field(default_factory=dict)
    unfit: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def tell(self, what: str, variables: Mapping[str, Any], missing: list[str]) -> None:
        rows = []
        for target in (name for name in variables if name in self.loaded):
            name = self.loaded[target][0]
            row = f"{_spec(variables[target])}  {target}"
            rows.append(row if name == target else f"{row}  from {name}")
        parts = [
            ("loaded", rows),
            ("left out, since it does not fit", self.unfit),
            ("keep their initial values, as skip= says", self.skipped),
            ("got no value", missing),
            ("not used", self.unused),
        ]
        lines = [f"Starting from {what}:"]
        for title, names in parts:
            if names:
                lines.append(f"  {title} ({len(names)})")
                lines += [f"    {name}" for name in _cut(names)]
        _LOG.log(logging.INFO if self.loaded else logging.WARNING, "%s", "\n".join(lines))


def as_init(init: Any) -> SmartInit | None:
    """What `TrainConfig(init=)` was given, as a `SmartInit`."""
    return init if init is None or isinstance(init, SmartInit) else SmartInit(init)


def start_from(init: SmartInit | None, variables: Mapping[str, Any], *, resumed: bool) -> None:
    """Load what a run starts from, unless it goes on from a checkpoint."""
    if init is None:
        return
    if resumed:
        _LOG.info("%r is not used again: the run goes on from its own checkpoint.", init)
    else:
        init.load(variables)


def _of_keras(name: str, variables: Mapping[str, Any]) -> str | None:
    """The one variable that a name in a file of Keras is for.

    A file may number the variables of a layer: `conv1/0`.
    """
    layer, _, last = name.rpartition("/")
    ending = f"/{layer if last.isdigit() else name}"
    below: dict[str, list[str]] = {}
    for variable in variables:
        parent = variable.rpartition("/")[0]
        if f"/{parent if last.isdigit() else variable}".endswith(ending):
            below.setdefault(parent, []).append(variable)
    if len(below) != 1:
        return None
    [found] = below.values()
    number = int(last) if last.isdigit() else 0
    return found[number] if number < len(found) else None


def _fitted(array: np.ndarray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """The array as a variable needs it, or None."""
    if [n for n in array.shape if n != 1] != [n for n in shape if n != 1]:
        return None
    widened = array.dtype.kind == dtype.kind and np.can_cast(array.dtype, dtype, "safe")
    if not widened and not (_is_float(array.dtype) and _is_float(dtype)):
        return None
    return array.reshape(shape).astype(dtype, copy=False)


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


def _is_weight(name: str) -> bool:
    return name.rpartition("/")[2] not in _OF_A_RUN


def _spec(variable: Any) -> str:
    return _text(variable.shape, variable.dtype)


def _text(shape: Iterable[int], dtype: Any) -> str:
    return f"{dtype.name} {list(shape)}"


def _cut(names: Sequence[str]) -> list[str]:
    more = [f"… and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return [*names[:_SHOWN], *more]


def _listed(names: Iterable[str]) -> str:
    return "\n".join(_cut(list(names)))
