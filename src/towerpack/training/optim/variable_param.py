"""Hyper-parameters that can be changed during training."""

from __future__ import annotations

import tensorflow as tf

from towerpack._core.errors import ConfigError


class VariableParam:
    """Hyper-parameter that is a variable of the graph.

    Args:
        name: Name for messages.
        variable: Scalar variable.

    Attributes:
        held: Value set by `hold`, which overrides `set` and schedules; None if not held.
    """

    def __init__(self, name: str, variable: tf.Variable) -> None:
        self.name, self.variable = name, variable
        self.held: float | None = None

    def get(self) -> float:
        """Return the current value."""
        return float(self.variable.numpy())

    def set(self, value: float) -> None:
        """Change the value, unless it is held.

        Args:
            value: New value; a whole number for an integer variable.

        Raises:
            ConfigError: The variable is an integer and `value` is not.
        """
        if self.held is not None:
            return
        if self.variable.dtype.is_integer and value != int(value):
            raise ConfigError(
                f"The hyper-parameter '{self.name}' must be an integer, got {value!r}."
            )
        self.variable.assign(value)

    def hold(self, value: float | None) -> None:
        """Set the value, and fix it: later calls of `set` and schedules have no effect.

        Args:
            value: New value; None allows changes again.

        Raises:
            ConfigError: The variable is an integer and `value` is not.
        """
        self.held = None
        if value is not None:
            self.set(value)
            self.held = float(value)


class ObjAttrParam:
    """Hyper-parameter that Python code reads from an attribute of an object.

    Args:
        obj: Object.
        attr: Name of the attribute.

    Raises:
        ConfigError: The object has no such attribute.
    """

    def __init__(self, obj: object, attr: str) -> None:
        if not hasattr(obj, attr):
            raise ConfigError(f"The object of ObjAttrParam has no attribute '{attr}': {obj!r}.")
        self.name = attr
        self._obj = obj

    def get(self) -> float:
        """Return the current value."""
        return getattr(self._obj, self.name)

    def set(self, value: float) -> None:
        """Change the value.

        Args:
            value: New value.
        """
        setattr(self._obj, self.name, value)
