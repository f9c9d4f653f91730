"""Hyper-parameters set by hand, while training goes on."""

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

_log = get_logger(__name__)


class HumanHyperParamSetter(Callback):
    """Read hyper-parameters from a file in the run directory, before training and each epoch.

    The file is YAML with a number for each name:

        learning_rate: 0.001

    What it says holds as long as it says so, whatever set the number in between. It is fine if the
    file is not there. Whatever is wrong with it is logged, once for each version of the file, and
    never ends the training. Changes are logged and kept in checkpoints.

    Args:
        param: Name or names to look for; None for all that the trainer knows.
        file: Name of the file in the run directory.

    Attributes:
        changes: Every change that was made: [step, name, old value, new value].
    """

    def __init__(self, param: str | Sequence[str] | None = None, file: str = "hyper.yaml") -> None:
        self.changes: list[list[Any]] = []
        self._params = None if param is None else [param] if isinstance(param, str) else [*param]
        self._file = file
        self._last_read: bytes | None = None
        self._warned: set[str] = set()
        self._held: set[str] = set()

    def before_train(self) -> None:
        """Read the file. Raise `ConfigError` for a name that the trainer does not know."""
        for name in self._params or ():
            self.trainer.hyper_param(name)
        for step, name, old, new in self.changes[-5:]:
            _log.info("Changed by hand before, at step %d: %s: %.6g → %.6g.", step, name, old, new)
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
            self._warn(f"'{name}' cannot be {value:.6g}: {error}")
            return
        after = float(param.get())
        if after != before:
            step = int(self.trainer.global_step)
            self.changes.append([step, name, before, after])
            _log.info("%s: %s: %.6g → %.6g at step %d.", self._file, name, before, after, step)

    def _numbers(self) -> dict[str, float]:
        """The known names and finite numbers of the file; warns of everything else."""
        try:
            parsed = parse_yaml(self._content()) or {}
        except ValueError as error:
            self._warn(f"no YAML: {' '.join(str(error).split())[:300]}")
            return {}
        if not isinstance(parsed, dict):
            self._warn(
                f"expected lines such as 'learning_rate: 0.001', got {reprlib.repr(parsed)[:60]}"
            )
            return {}
        known = self.trainer.hyper_param_names()
        found: dict[str, float] = {}
        for name, raw in parsed.items():
            if name not in known:
                near = did_you_mean(str(name)[:60], known)
                self._warn(f"no hyper-parameter is named {reprlib.repr(name)[:60]}. {near}")
            elif (value := _number(raw)) is None:
                # Short: a few lines of YAML aliases can describe billions of items.
                self._warn(f"'{name}' must be a finite number, got {reprlib.repr(raw)[:60]}")
            else:
                found[name] = value
        return found

    def _content(self) -> bytes:
        try:
            content = read_regular(self.trainer.run_dir / self._file)
        except FileNotFoundError:
            return b""
        except (OSError, TowerpackError) as error:
            self._warn(f"it cannot be read: {error}")
            return b""
        if content != self._last_read:
            self._last_read = content
            self._warned.clear()
        return content

    def _warn(self, problem: str) -> None:
        if problem not in self._warned:
            self._warned.add(problem)
            _log.warning("%s: %s", self.trainer.run_dir / self._file, problem)

    def state(self) -> dict[str, Any]:
        return {"changes": self.changes}

    def restore(self, state: Any) -> None:
        self.changes = [list(change) for change in state["changes"]]


def _number(raw: Any) -> float | None:
    # YAML 1.1, which PyYAML reads, takes 1e-3 for a string: it wants 1.0e-3.
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None
    try:
        value = float(raw)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None
