"""Settings of a run, which checkpoints hold so that a continued run can report changes."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import keras

from towerpack._core.arguments import arguments_of
from towerpack._core.columns import aligned
from towerpack._core.logs import get_logger
from towerpack._core.naming import dotted
from towerpack._core.versions import library_versions
from towerpack.callbacks import Callbacks
from towerpack.dataflow import DataFlow
from towerpack.dataflow.content import (
    checksum_of_setting,
    content_of,
    functions_of,
    serial_pipeline_of,
    stages_of,
)
from towerpack.dataflow.object_parts import noting_uncompared
from towerpack.inputs import InputSource
from towerpack.tower import TowerFunction, TowerTrace
from towerpack.training.distribution.replicas import first
from towerpack.training.optim.proxy_and_loss_scale import ProxyOptimizer, named_optimizer
from towerpack.training.state.graph_fingerprint import OPERANDS, operations_of
from towerpack.training.state.setting_to_json import class_of, described
from towerpack.training.state.skipped_steps import skipped_setting
from towerpack.training.steps.step import TrainStep

Settings = Mapping[str, Any]

_log = get_logger(__name__)

_WIDEST = 48
# Types of attributes that are compared if Keras cannot describe an optimizer.
_COMPARED = (bool, int, float, str, list)
# Checksums may differ between releases of the library.
_CHECKSUM = re.compile(r"\b[0-9a-f]{8}\b")
FORMAT = "settings format"
_VARIABLE = "variable "
_TABLE = "kept variable "
# An argument of a callback.
_ARGUMENT = re.compile(r"(callback .*#\d+)\..*")


def settings_of(
    config: Any,
    source: InputSource,
    callbacks: Callbacks,
    trace: TowerTrace,
    optimizer: Any,
    step: TrainStep,
    tower: TowerFunction,
) -> Settings:
    """Return the settings that affect training, by name, as JSON values.

    `tower` must have its initial values. `optimizer` is an optimizer or a dict of optimizers.
    """
    names = ("precision", "deterministic", "xla", "frozen", "trainable")
    optimizers = optimizer if isinstance(optimizer, Mapping) else {"optimizer": optimizer}
    with noting_uncompared() as classes:
        data = data_settings(source)
    uncompared = [f"{each} in data.functions" for each in classes]
    values = {
        **{name: getattr(config, name) for name in names},
        **skipped_setting(config.skip_steps),
        **data,
        **source.settings(),
        "step": class_of(step),
        **step.settings(),
        **_callbacks(callbacks),
        **{n: v for name, o in optimizers.items() for n, v in _optimizer(name, o).items()},
        **operations_of(trace),
        **_variables(tower, trace),
        FORMAT: 4,
    }
    settings: dict[str, Any] = {}
    for name, value in values.items():
        with noting_uncompared() as classes:
            settings[name] = described(value)
        uncompared += [f"{each} in {name}" for each in classes]
    if uncompared:
        _log.info("Settings that a continued run cannot compare: %s.", "; ".join(uncompared))
    return settings


def common_settings(config: Any, source: InputSource, settings: Settings) -> Settings:
    """Return the settings that must be equal in all workers. Workers may read different data."""
    flow = getattr(source, "dataflow", None)
    stages, functions = stages_of(flow) if isinstance(flow, DataFlow) else (None, None)
    names = ("seed", "max_epoch", "steps_per_epoch")
    return {
        **{name: value for name, value in settings.items() if name.partition(".")[0] != "data"},
        **{name: getattr(config, name) for name in names},
        "data": stages,
        "data.functions": functions,
        **{f"version of {name}": v for name, v in library_versions().items() if name != "python"},
    }


def differences(workers: Sequence[Settings]) -> dict[int, list[str]]:
    """Describe the settings of each worker that differ from those of worker 0, by worker index."""
    lines: dict[int, list[str]] = {}
    for index, settings in enumerate(workers):
        changed = [
            f"{c.name}: {_short(c.old)} in worker 0, {_short(c.new)} in worker {index}"
            for c in changes(workers[0], settings)
            # Some callbacks run in the chief only.
            if not (c.name.startswith("callback ") and None in (c.old, c.new))
        ]
        if changed:
            lines[index] = changed
    return lines


class Change(NamedTuple):
    """Setting that a continued run has changed. `holds` names the value in effect."""

    name: str
    old: Any
    new: Any
    holds: str = "new"


def changes(old: Settings, new: Settings) -> list[Change]:
    names = [*new, *(name for name in old if name not in new)]
    if old.get(FORMAT) != new.get(FORMAT):  # Releases of the library have different settings.
        names = [n for n in names if n in old and n in new and n != FORMAT]
        names = [n for n in names if not _CHECKSUM.search(f"{old[n]} {new[n]}")]
    changed = [n for n in names if old.get(n) != new.get(n)]
    # Leave out what another change implies: operands of changed operations, arguments of a
    # callback that was added or removed.
    implied = {OPERANDS} if sum(n.startswith("model.") for n in changed) > 1 else set[str]()
    for name in changed:
        argument = _ARGUMENT.fullmatch(name)
        if argument and (argument[1] in old) != (argument[1] in new):
            implied.add(name)
    changed = [n for n in changed if n not in implied]
    return [Change(n, old.get(n), new.get(n), _holds(n, new.get(n))) for n in changed]


def changed_variables(changed: Sequence[Change]) -> set[str]:
    """Return the names of variables whose initial value the program has changed."""
    names = {c.name for c in changed if c.name.startswith(_VARIABLE) and c.old is not None}
    return {name.removeprefix(_VARIABLE) for name in names}


def _holds(name: str, new: Any) -> str:
    if name == "seed":
        return "new (the order of the data: old)"
    if new is None and name.startswith("callback "):
        return "values that it has set"
    return "old" if name.startswith(_TABLE) else "new"


def changes_text(changed: Sequence[Change]) -> str:
    rows = [("setting", "old", "new", "in effect")]
    rows += [(c.name, _short(c.old), _short(c.new), c.holds) for c in changed]
    return "\n".join(line.rstrip() for line in aligned(rows, "<<<<"))


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        items = [_short(item) for item in cast("list[Any]", value)]
        between = [f"… {len(items) - 4} more"] if len(items) > 8 else items[3:-1]
        text = ", ".join([*items[:3], *between, *items[max(3, len(items) - 1) :]])
        return text if len(text) <= 2 * _WIDEST else f"{text[:_WIDEST]} … {text[-_WIDEST:]}"
    text = "-" if value is None else str(value)
    return text if len(text) <= _WIDEST else f"…{text[-_WIDEST:]}"


def data_settings(source: InputSource) -> Settings:
    """Return the settings by which the data of a run are recognized."""
    flow = getattr(source, "dataflow", None)
    if not isinstance(flow, DataFlow):
        functions = {n: v for n, v in arguments_of(source).items() if callable(v)}
        return {"data": class_of(source), **dotted(functions, "data")}
    return {
        "data": serial_pipeline_of(flow),
        "data.content": checksum_of_setting(content_of(flow, sample=True)),
        "data.functions": checksum_of_setting(functions_of(flow)),
    }


def _callbacks(callbacks: Callbacks) -> Settings:
    result: dict[str, Any] = {}
    for key, callback in zip(callbacks.keys(), callbacks.callbacks, strict=True):
        settings = callback.settings()
        if isinstance(settings, Mapping):
            result |= {f"callback {key}": class_of(callback), **dotted(settings, f"callback {key}")}
        elif settings is not None:
            result[f"callback {key}"] = settings
    return result


def _variables(tower: TowerFunction, trace: TowerTrace) -> Settings:
    """Return the values of the program's own `tf.Variable`s that training does not change.

    New values of scalars and vectors, such as class weights, take effect when a run continues.
    Matrices of floats may be random, so their saved values stay in effect.
    """
    values: dict[str, Any] = {}
    for name, variable in tower.store.bare_variables().items():
        if name in trace.used and name not in trace.moved and not variable.trainable:
            value = first(variable).numpy()
            table = value.ndim > 1 and value.dtype.kind == "f"
            values[f"{_TABLE if table else _VARIABLE}{name}"] = value
    return values


def _optimizer(name: str, optimizer: Any) -> Settings:
    optimizer = named_optimizer(optimizer)
    if isinstance(optimizer, ProxyOptimizer):
        return {
            name: class_of(optimizer),
            **_flat(name, optimizer.settings()),
            **_optimizer(f"{name}.optimizer", optimizer.wrapped),
        }
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    rate = getattr(inner, "_learning_rate", None)
    schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    if isinstance(optimizer, keras.optimizers.Optimizer) and (schedule or not callable(rate)):
        config = optimizer.get_config()
    else:  # Keras cannot describe functions.
        attributes = getattr(optimizer, "__dict__", {})  # other objects are refused later
        values = {k.strip("_"): _numbers_of(v) for k, v in attributes.items()}
        config = {k: v for k, v in values.items() if isinstance(v, _COMPARED) or callable(v)}
    return {name: class_of(optimizer), **_flat(name, config)}


def _flat(prefix: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    # A rate that is a number is a variable, and compared as a hyper-parameter.
    def is_rate(name: str, value: Any) -> bool:
        return name in ("learning_rate", "lr") and isinstance(value, float)

    leaves = {n: (n.rpartition(".")[2], v) for n, v in dotted(tree, prefix).items()}
    return {n: v for n, (key, v) in leaves.items() if key != "name" and not is_rate(key, v)}


def _numbers_of(value: Any) -> Any:
    """Return the arguments of a `tf.compat.v1.train` schedule as a list; other values unchanged."""
    if not isinstance(value, functools.partial):
        return value
    attributes = getattr(value.func, "__dict__", None)
    if not attributes:
        return value
    arguments = [*attributes.values(), *value.args, *value.keywords.values()]
    return [v for v in arguments if isinstance(v, bool | int | float | list)]
