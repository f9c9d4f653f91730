"""Conversion of settings to JSON values that are the same in every process."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np

from towerpack._core.arguments import KeepsArguments, arguments_of
from towerpack.dataflow import DataFlow
from towerpack.dataflow.content import (
    checksum_of_setting,
    content_of,
    functions_of,
    serial_pipeline_of,
)
from towerpack.dataflow.object_parts import configuration_of, is_library
from towerpack.inputs import InputSource
from towerpack.training.state.run_dir import plain

_SHORT = 16


def described(value: Any) -> Any:
    """Convert a setting to a JSON value; long lists and objects to text with a checksum."""
    if value is None or isinstance(value, bool | int | float | str):
        return plain(value)
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.size <= _SHORT):
        return described(value.tolist())
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): described(v) for k, v in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        if len(items) <= _SHORT or all(isinstance(i, bool | int | float | str) for i in items):
            return [described(item) for item in items]
    if isinstance(value, DataFlow):
        return f"{serial_pipeline_of(value)} {checksum_of_data(value)}"
    if isinstance(value, InputSource):
        return type(value).__name__
    if isinstance(value, KeepsArguments):
        return _call(value, arguments_of(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _call(value, {f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    if isinstance(value, keras.metrics.Metric | keras.losses.Loss):
        return _call(value, configuration_of(value) or {})
    name = getattr(value, "__name__", type(value).__name__)
    return f"{name} {checksum_of_setting(value)}"


def checksum_of_data(flow: DataFlow) -> str:
    return checksum_of_setting([content_of(flow, sample=True), functions_of(flow)])


def class_of(value: object) -> str:
    """Return the name of an object's class, with a checksum of code outside libraries."""
    cls = type(value)
    if is_library(cls.__module__):
        return cls.__name__
    return f"{cls.__name__} {checksum_of_setting(cls)}"


def _call(value: object, arguments: Mapping[str, Any]) -> str:
    text = ", ".join(f"{name}={described(v)}" for name, v in arguments.items())
    return f"{class_of(value)}({text})"
