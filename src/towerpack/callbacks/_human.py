"""Callback that reads hyper-parameters from a file, which a user edits during training."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from typing import Any

from towerpack._core.errors import TowerpackError
from towerpack._core.files import read_regular
from towerpack._core.logs import get_logger
from towerpack._core.naming import did_you_mean
from towerpack._core.yaml_text import parse_yaml
from towerpack.callbacks._base import Callback
from towerpack.callbacks._hyper import check_changeable

_log = get_logger(__name__)


class HumanHyperParamSetter(Callback):
    """Read hyper-parameters from a file in the run directory, before training and after each epoch.

    The file is YAML with a number for each name. It need not exist:

        learning_rate: 0.001

    A value is held against schedules as long as it is in the file. Mistakes in the file are logged
    and never end training. Changes are logged and stored in checkpoints.

    Args:
        param: Name or names of hyper-parameters to read; None for all that the trainer has.
        file: Name of the file in the run directory.

    Attributes:
        changes: All changes so far: [step, name, old value, new value].
    """

    def __init__(self, param: str | Sequence[str] | None = None, file: str = "hyper.yaml") -> None:
        self.changes: list[list[Any]] = []
        self._params = None if param is None else [param] if isinstance(param, str) else [*param]
        self._file = file
        self._last_read: bytes | None = None
        self._warned: set[str] = set()
        self._held: set[str] = set()

    def before_train(self) -> None:
        for name in self._params or ():
            check_changeable(self.trainer, name)
        for step, name, old, new in self.changes[-5:]:
            _log.info("Earlier change by hand at step %d: %s: %.6g → %.6g.", step, name, old, new)
        self.trigger()

    def trigger(self) -> None:
        numbers = self._numbers()
        for name in self._held - numbers.keys():
            self.trainer.hold(name, None)
        self._held &= numbers.keys()
        for name, value in numbers.items():
            if self._params is None or name in self._params:
                self._hold(name, value)

    def _hold(self, name: str, value: float) -> None:
        param = self.trainer.hyper_param(name)
        before = float(param.get())
        try:
            self.trainer.hold(name, value)
            self._held.add(name)
        except (TowerpackError, ValueError, TypeError) as error:
            self._warn(f"'{name}' cannot be set to {value:.6g}: {error}")
            return
        after = float(param.get())
        if after != before:
            step = int(self.trainer.global_step)
            self.changes.append([step, name, before, after])
            _log.info("%s: %s: %.6g → %.6g at step %d.", self._file, name, before, after, step)

    def _numbers(self) -> dict[str, float]:
        try:
            content = read_regular(self.trainer.run_dir / self._file)
            if content != self._last_read:
                self._last_read = content
                self._warned.clear()
            parsed = parse_yaml(content) or {}
        except FileNotFoundError:
            return {}
        except (OSError, TowerpackError) as error:
            self._warn(f"the file cannot be read: {error}")
            return {}
        except ValueError as error:
            self._warn(f"the file is not YAML: {' '.join(str(error).split())[:300]}")
            return {}
        # Values are shortened: a few lines of YAML aliases can describe billions of items.
        if not isinstance(parsed, dict):
            text = reprlib.repr(parsed)[:60]
            self._warn(f"expected lines such as 'learning_rate: 0.001', got {text}")
            return {}
        known = self.trainer.hyper_param_names()
        numbers: dict[str, float] = {}
        for name, raw in parsed.items():
            if name not in known:
                near = did_you_mean(str(name)[:60], known)
                self._warn(f"no hyper-parameter is named {reprlib.repr(name)[:60]}. {near}")
            elif (value := _number(raw)) is None:
                self._warn(f"'{name}' must be a finite number, got {reprlib.repr(raw)[:60]}")
            else:
                numbers[name] = value
        return numbers

    def _warn(self, problem: str) -> None:
        if problem not in self._warned:
            self._warned.add(problem)
            _log.warning("%s: %s", self.trainer.run_dir / self._file, problem)

    def state(self) -> dict[str, Any]:
        return {"changes": self.changes}

    def restore(self, state: Any) -> None:
        self.changes = [list(change) for change in state["changes"]]


def _number(raw: Any) -> float | None:
    # PyYAML reads 1e-3 as a string: YAML 1.1 requires 1.0e-3.
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None
    try:
        value = float(raw)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None
