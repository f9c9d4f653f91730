"""Settings of a run, kept in checkpoints, so that a changed program does not go on silently."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import keras
import numpy as np
import tensorflow as tf

from towerpack.dataflow import DataFlow
from towerpack.dataflow._flow import content_of
from towerpack.inputs import InputSource
from towerpack.tower import COST, TowerTrace
from towerpack.training._run_dir import plain

Settings = Mapping[str, Any]

_LARGEST_CONSTANT = 16
_WIDEST = 60
# Keras and TensorFlow count names over the whole process.
_COUNTED = re.compile(r"_\d+(?=/|$)")


def settings_of(config: Any, source: InputSource, trace: TowerTrace, optimizer: Any) -> Settings:
    """Settings that decide how a training goes on, by name, as JSON values.

    Args:
        config: The `TrainConfig`.
        source: Where its data come from.
        trace: A training tower.
        optimizer: As the user gave it: one, or a dict.
    """
    names = ("precision", "deterministic", "xla")
    found = {
        **{name: getattr(config, name) for name in names},
        **_data(source),
        **_optimizers(optimizer),
        **_model(trace),
    }
    return plain(found)


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
    return [
        c._replace(holds="new (the order of the data: old)") if c.name == "seed" else c
        for c in found
    ]


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
        return ", ".join(map(_short, cast("list[Any]", value)))
    text = "-" if value is None else str(value)
    return text if len(text) <= _WIDEST else f"…{text[-_WIDEST:]}"


def _data(source: InputSource) -> Settings:
    flow = getattr(source, "dataflow", None)
    if not isinstance(flow, DataFlow):
        return {"data": type(source).__name__}
    return {"data": str(flow), "data.content": content_of(flow, sample=True)}


def _optimizers(given: Any) -> Settings:
    by_name = given if isinstance(given, Mapping) else {"optimizer": given}
    found: dict[str, Any] = {}
    for name, optimizer in by_name.items():
        found.update(_optimizer(name, optimizer))
    return found


def _optimizer(name: str, optimizer: Any) -> Settings:
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    if isinstance(optimizer, keras.optimizers.Optimizer):
        config = optimizer.get_config()
    else:
        kinds = (bool, int, float, str)
        config = {k.strip("_"): v for k, v in vars(optimizer).items() if isinstance(v, kinds)}
    return {name: type(optimizer).__name__, **_flat(name, config)}


def _flat(prefix: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found.update(_flat(f"{prefix}.{key}", value))
        # A rate that is a number is in a variable, and told as a hyper-parameter.
        elif key != "name" and not (key == "learning_rate" and isinstance(value, float)):
            found[f"{prefix}.{key}"] = value
    return found


def _model(trace: TowerTrace) -> Settings:
    """The operations of the tower, counted, and its small constants of floating point."""
    graph: Any = trace.result.outputs[COST].graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    constants: dict[str, list[Any]] = defaultdict(list)
    for node in nodes:
        if node.op == "Const" and tf.as_dtype(node.attr["dtype"].type).is_floating:
            value = tf.make_ndarray(node.attr["value"].tensor)
            if value.size <= _LARGEST_CONSTANT:
                name = _COUNTED.sub("", node.name)
                constants[f"model.{name}"].extend(np.asarray(value, float).ravel().tolist())
    counts = Counter(node.op for node in nodes)
    return {
        **{f"model.{op} operations": count for op, count in sorted(counts.items())},
        **{name: sorted(set(values)) for name, values in constants.items()},
    }
