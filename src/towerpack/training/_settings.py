"""Settings of a run, kept in checkpoints, so that a changed program does not go on silently."""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import keras
import tensorflow as tf

from towerpack.callbacks import Callbacks
from towerpack.dataflow import DataFlow
from towerpack.dataflow._content import content_of, functions_of, serial_pipeline_of, stages_of
from towerpack.inputs import InputSource
from towerpack.tower import COST, TowerTrace
from towerpack.training._run_dir import plain
from towerpack.training._step import TrainStep
from towerpack.training.optim._wrapping import ProxyOptimizer

Settings = Mapping[str, Any]

_LARGEST_CONSTANT = 16
_WIDEST = 48
# Keras and TensorFlow count names over the whole process.
_COUNTED = re.compile(r"(?:_\d+)+(?=/|$)")
_COMPARED = {
    t.as_datatype_enum for t in (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32)
}
# Attributes of operations that differ from start to start, or tell nothing.
_UNTOLD = {
    "config_proto",  # in calls of functions: devices of this machine
    "container",
    "debug_name",
    "parallel_iterations",
    "seed",
    "seed2",
    "shared_name",
}


def settings_of(
    config: Any,
    source: InputSource,
    callbacks: Callbacks,
    trace: TowerTrace,
    optimizer: Any,
    step: TrainStep,
) -> Settings:
    """Settings that decide how a training goes on, by name, as JSON values.

    Args:
        config: The `TrainConfig`.
        source: Where its data come from.
        callbacks: All of them.
        trace: A training tower.
        optimizer: As the user gave it: one, or a dict.
        step: What one step is.
    """
    names = ("precision", "deterministic", "xla", "frozen", "trainable")
    found = {
        **{name: getattr(config, name) for name in names},
        **_data(source),
        **source.settings(),
        **step.settings(),
        **_callbacks(callbacks),
        **_optimizers(optimizer),
        **_model(trace),
    }
    return plain(found)


def common_settings(config: Any, source: InputSource, settings: Settings) -> Settings:
    """Settings in which the workers of a run must not differ. They may read different data."""
    flow = getattr(source, "dataflow", None)
    stages, functions = stages_of(flow) if isinstance(flow, DataFlow) else (None, None)
    names = ("seed", "max_epoch", "steps_per_epoch")
    return {
        **{name: value for name, value in settings.items() if name.partition(".")[0] != "data"},
        **{name: getattr(config, name) for name in names},
        "data": stages,
        "data.functions": functions,
    }


def differences(workers: Sequence[Settings]) -> dict[int, list[str]]:
    """What each worker's settings have other than the first's, by its index."""
    found: dict[int, list[str]] = {}
    for index, settings in enumerate(workers):
        changed = [
            f"{c.name}: {_short(c.old)} in worker 0, {_short(c.new)} in worker {index}"
            for c in changes(workers[0], settings)
            # Not every callback acts in every worker.
            if not (c.name.startswith("callback ") and None in (c.old, c.new))
        ]
        if changed:
            found[index] = changed
    return found


class Change(NamedTuple):
    """A setting that is not what it was; `holds` says which of both is in effect."""

    name: str
    old: Any
    new: Any
    holds: str = "new"


def changes(old: Settings, new: Settings) -> list[Change]:
    """The settings that differ."""
    names = [*new, *(name for name in old if name not in new)]
    found = [Change(n, old.get(n), new.get(n)) for n in names if old.get(n) != new.get(n)]
    return [c._replace(holds=_holds(c)) for c in found]


def _holds(change: Change) -> str:
    if change.name == "seed":
        return "new (the order of the data: old)"
    if change.new is None and change.name.startswith("callback "):
        return "what it has set stays"
    return "new"


def changes_text(changed: Sequence[Change]) -> str:
    """A table of changes."""
    rows = [("setting", "old", "new", "in effect")]
    rows += [(c.name, _short(c.old), _short(c.new), c.holds) for c in changed]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{t:<{w}}" for t, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join("  " + line.rstrip() for line in lines)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        items = [_short(item) for item in cast("list[Any]", value)]
        between = [f"… {len(items) - 4} more"] if len(items) > 8 else items[3:-1]
        return ", ".join([*items[:3], *between, *items[max(3, len(items) - 1) :]])
    text = "-" if value is None else str(value)
    return text if len(text) <= _WIDEST else f"…{text[-_WIDEST:]}"


def _data(source: InputSource) -> Settings:
    flow = getattr(source, "dataflow", None)
    if not isinstance(flow, DataFlow):
        return {"data": type(source).__name__}
    return {
        "data": serial_pipeline_of(flow),
        "data.content": _checksum(content_of(flow, sample=True).encode()),
        "data.functions": _checksum(functions_of(flow).encode()),
    }


def _callbacks(callbacks: Callbacks) -> Settings:
    pairs = zip(callbacks.keys(), callbacks.callbacks, strict=True)
    told = {key: callback.settings() for key, callback in pairs}
    return {f"callback {key}": value for key, value in told.items() if value is not None}


def _optimizers(given: Any) -> Settings:
    by_name = given if isinstance(given, Mapping) else {"optimizer": given}
    found: dict[str, Any] = {}
    for name, optimizer in by_name.items():
        found.update(_optimizer(name, optimizer))
    return found


def _optimizer(name: str, optimizer: Any) -> Settings:
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    if isinstance(optimizer, ProxyOptimizer):
        return {
            name: type(optimizer).__name__,
            **_flat(name, optimizer.settings()),
            **_optimizer(f"{name}.optimizer", optimizer.wrapped),
        }
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    rate = getattr(inner, "_learning_rate", None)
    schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    if isinstance(optimizer, keras.optimizers.Optimizer) and (schedule or not callable(rate)):
        config = optimizer.get_config()
    else:  # Keras cannot describe functions.
        kinds = (bool, int, float, str)
        own = getattr(optimizer, "__dict__", {})  # what is no optimizer is refused later
        values = {k.strip("_"): _numbers_of(v) for k, v in own.items()}
        config = {k: v for k, v in values.items() if isinstance(v, (*kinds, list))}
    return {name: type(optimizer).__name__, **_flat(name, config)}


def _flat(prefix: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found.update(_flat(f"{prefix}.{key}", value))
        # A rate that is a number is in a variable, and told as a hyper-parameter.
        elif key != "name" and not (key in ("learning_rate", "lr") and isinstance(value, float)):
            found[f"{prefix}.{key}"] = value
    return found


def _numbers_of(value: Any) -> Any:
    """Of a schedule of `tf.compat.v1.train` the numbers that it was made with, else the value."""
    if not isinstance(value, functools.partial):
        return value
    made_with = getattr(value.func, "__dict__", {})
    given = [*made_with.values(), *value.args, *value.keywords.values()]
    return [v for v in given if isinstance(v, bool | int | float | list)]


def _model(trace: TowerTrace) -> Settings:
    """The operations of the tower, counted by kind and attributes, and its constants."""
    graph: Any = trace.result.outputs[COST].graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    constants: dict[str, list[Any]] = defaultdict(list)
    for node in nodes:
        # Other integers are mostly seeds and sizes.
        if node.op == "Const" and node.attr["dtype"].type in _COMPARED:
            value = tf.make_ndarray(node.attr["value"].tensor)
            small = value.size <= _LARGEST_CONSTANT
            told = value.ravel().tolist() if small else [_checksum(value.tobytes())]
            constants[f"model.{_COUNTED.sub('', node.name)}"].extend(told)
    counts = Counter(_kind_of(node) for node in nodes if node.op != "Const")
    return {
        **{f"model.{kind}": count for kind, count in sorted(counts.items())},
        **{n: v[:1] if len(set(v)) == 1 else v for n, v in constants.items()},
    }


def _checksum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=4).hexdigest()


def _kind_of(node: Any) -> str:
    told = []
    for name, attr in sorted(node.attr.items()):
        which = attr.WhichOneof("value")
        if which in ("f", "b", "i", "list", "s") and name not in _UNTOLD and name[0] != "_":
            numbers = [*attr.list.i, *attr.list.f] if which == "list" else [getattr(attr, which)]
            told += [f"{name}={v.decode() if isinstance(v, bytes) else v}" for v in numbers]
    return f"{node.op}({', '.join(told)})" if told else f"{node.op} operations"
