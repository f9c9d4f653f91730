"""Initial weights from files and other runs, matched by name."""

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
from towerpack._core.remote_path import is_url
from towerpack.training.weights.read_foreign import read_arrays

_LOG = get_logger(__name__)
_SHOWN: Final = 10
# Names of variables in Tensorpack and slim, and their names in our layers.
_SUCCESSORS: Final = {
    "W": "kernel",
    "b": "bias",
    "mean/EMA": "moving_mean",
    "variance/EMA": "moving_variance",
    "weights": "kernel",
    "biases": "bias",
}
# Variables in checkpoints that are not weights and that a new run initializes itself.
_NOT_WEIGHTS: Final = ("learning_rate", "global_step", "seed_generator_state")

Rename = Mapping[str, str] | Callable[[str], str | None]


class SmartInit:
    """Initial weights of a run, matched by name with the model's variables.

        TrainConfig(…, init=SmartInit('runs/pretrained', ignore_mismatch=True))

    Shapes must be equal, except for dimensions of size 1. Floats are converted to the variable's
    float type. Names of Tensorpack's layers (`conv0/W`, `bn0/mean/EMA`) and of slim's
    (`fc/weights`) are translated. A name in a Keras file matches the only variable whose name ends
    with it, for example `conv1/kernel` matches `backbone/conv1/kernel`. The log lists loaded
    variables, variables without a value and unused values.

    Args:
        source: A run directory or URL (its newest valid checkpoint), a checkpoint, a `.safetensors`
            or `.npz` file, a TensorFlow checkpoint, a Keras file (`.keras`, `.weights.h5`, `.h5`),
            a name in `towerpack.zoo.PRETRAINED`, or a dict of arrays by name. Later sources in a
            list override earlier ones. None and '' load nothing.
        skip: One or several regular expressions for full names of variables that keep their initial
            values: `'fc/.*'` for different classes.
        ignore_mismatch: Skip values of a different shape or type instead of raising an error.
        rename: A dict from names in the source to names in the model, or a function that returns
            the name in the model, or None to skip the value.
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

    def paths(self) -> list[str | Path]:
        """Return the files and directories to read."""
        paths: list[str | Path] = []
        for source in self._sources:
            if isinstance(source, SmartInit):
                paths += source.paths()
            elif isinstance(source, str | os.PathLike) and os.fspath(source):
                paths.append(str(source) if is_url(source) else Path(source))
        return paths

    def load(self, variables: Mapping[str, Any]) -> set[str]:
        """Set the variables of a model. Return the names of the variables that were set.

        Args:
            variables: Variables by name.

        Raises:
            CheckpointError: A source cannot be read.
            CheckpointMismatchError: A value does not fit its variable, no name in a source matches,
                or a `skip` matches no variable.
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
        skipped: set[str] = set()
        for regex in self._skip:
            matching = {name for name in variables if re.fullmatch(regex, name)}
            if not matching:
                raise CheckpointMismatchError(
                    f"SmartInit(skip={regex!r}) matches no variable of the model.",
                    expected="a regular expression for full names, such as 'fc/.*'",
                    fix=did_you_mean(regex, variables),
                )
            skipped |= matching
        return skipped

    def _load(
        self,
        what: str,
        values: Mapping[str, Any],
        variables: Mapping[str, Any],
        skipped: set[str],
        is_part: bool,
    ) -> set[str]:
        self._check_names(what, values)
        matches = _Matches()
        for name in values:
            target = self._target(name, values, variables, is_part)
            if target is None:
                matches.unused.append(name)
                continue
            if target in skipped:
                continue
            if target in matches.loaded:
                matches.unfit.append(f"{target}: {matches.loaded[target][0]} and {name} match it")
                continue
            array, variable = values[name], variables[target]
            fitting = _fitted(array, tuple(variable.shape), np.dtype(variable.dtype.as_numpy_dtype))
            if fitting is None:
                text = f"{target}: {name} is {_spec(array)}, needs {_spec(variable)}"
                matches.unfit.append(text)
            else:
                matches.loaded[target] = (name, fitting)
        without = variables.keys() - matches.loaded.keys() - skipped
        missing = [name for name in variables if name in without and _is_weight(name)]
        matches.skipped = [name for name in variables if name in skipped]
        self._check(what, matches, values, missing)
        for target, (_, value) in matches.loaded.items():
            variables[target].assign(value)
        matches.log(what, variables, missing)
        return set(matches.loaded)

    def _target(
        self, name: str, values: Mapping[str, Any], variables: Mapping[str, Any], is_part: bool
    ) -> str | None:
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
        return _match_keras_name(renamed, variables) if is_part else None

    def _check_names(self, what: str, values: Mapping[str, Any]) -> None:
        if isinstance(self._rename, Mapping) and len(self._sources) == 1:
            for name in self._rename:
                if name not in values:
                    raise CheckpointMismatchError(
                        f"rename= contains '{name}', but {what} has no such name.",
                        fix=did_you_mean(name, values),
                    )

    def _check(
        self, what: str, matches: _Matches, values: Mapping[str, Any], missing: list[str]
    ) -> None:
        if matches.unfit and not self._ignore_mismatch:
            raise CheckpointMismatchError(
                f"Values in {what} do not fit the model.",
                got="\n".join(matches.unfit[:_SHOWN]),
                fix="skip the values: SmartInit(…, ignore_mismatch=True), or map names: rename=",
            )
        if not matches.loaded and not matches.unfit:
            close = difflib.get_close_matches(missing[0], values, n=1) if missing else []
            example = f"{{{close[0]!r}: {missing[0]!r}}}" if close else "…"
            raise CheckpointMismatchError(
                f"No value in {what} has the name of a variable of the model.",
                got="\n".join(_cut(values)),
                expected="\n".join(_cut(missing)),
                fix=f"map the names with SmartInit(…, rename={example})",
            )

    def __repr__(self) -> str:
        plain = (str, os.PathLike, SmartInit)
        shown = [s if isinstance(s, plain) else type(s).__name__ for s in self._sources]
        return f"SmartInit({', '.join(map(str, shown))})"


@dataclass
class _Matches:
    loaded: dict[str, tuple[str, np.ndarray]] = field(default_factory=dict)
    unfit: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def log(self, what: str, variables: Mapping[str, Any], missing: list[str]) -> None:
        rows = []
        for target in (name for name in variables if name in self.loaded):
            name = self.loaded[target][0]
            row = f"{_spec(variables[target])}  {target}"
            rows.append(row if name == target else f"{row}  from {name}")
        parts = [
            ("loaded", rows),
            ("skipped, because the value does not fit", self.unfit),
            ("skipped because of skip=", self.skipped),
            ("without a value", missing),
            ("not used", self.unused),
        ]
        lines = [f"Initial weights from {what}:"]
        for title, names in parts:
            if names:
                lines.append(f"  {title} ({len(names)})")
                lines += [f"    {name}" for name in _cut(names)]
        _LOG.log(logging.INFO if self.loaded else logging.WARNING, "%s", "\n".join(lines))


def start_from(init: SmartInit | None, variables: Mapping[str, Any], *, resumed: bool) -> None:
    if init is None:
        return
    if resumed:
        _LOG.info("Did not load %r again: the run continues from its own checkpoint.", init)
    else:
        init.load(variables)


def _match_keras_name(name: str, variables: Mapping[str, Any]) -> str | None:
    """Return the variable that matches a name in a Keras file, `conv1/kernel` or `conv1/0`."""
    layer, _, last = name.rpartition("/")
    ending = f"/{layer if last.isdigit() else name}"
    below: dict[str, list[str]] = {}
    for variable in variables:
        parent = variable.rpartition("/")[0]
        if f"/{parent if last.isdigit() else variable}".endswith(ending):
            below.setdefault(parent, []).append(variable)
    if len(below) != 1:
        return None
    [names] = below.values()
    number = int(last) if last.isdigit() else 0
    return names[number] if number < len(names) else None


def _fitted(array: np.ndarray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Convert an array to the shape and dtype of a variable. Return None if it does not fit."""
    if [n for n in array.shape if n != 1] != [n for n in shape if n != 1]:
        return None
    widened = array.dtype.kind == dtype.kind and np.can_cast(array.dtype, dtype, "safe")
    if not widened and not (_is_float(array.dtype) and _is_float(dtype)):
        return None
    return array.reshape(shape).astype(dtype, copy=False)


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


def _is_weight(name: str) -> bool:
    return name.rpartition("/")[2] not in _NOT_WEIGHTS


def _spec(value: Any) -> str:
    return f"{value.dtype.name} {list(value.shape)}"


def _cut(names: Iterable[str]) -> list[str]:
    names = list(names)
    more = [f"… and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return [*names[:_SHOWN], *more]
