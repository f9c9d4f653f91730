"""Numbers that can be changed while training goes on."""

from __future__ import annotations

import tensorflow as tf

from towerpack._core.errors import ConfigError


class VariableParam:
    """A hyper-parameter that the graph reads from a variable.

    Args:
        name: For messages.
        variable: A scalar.

    Attributes:
        held: The value by hand, which stands above `set` and schedules; None for none.
    """

    def __init__(self, name: str, variable: tf.Variable) -> None:
        self.name = name
        self.variable = variable
        self.held: float | None = None

    def get(self) -> float:
        """Its value now."""
        return float(self.variable.numpy())

    def set(self, value: float) -> None:
        """Change it, unless it is held.

        Raises:
            ConfigError: A fraction for an integer variable.
        """
        if self.held is not None:
            return
        if self.variable.dtype.is_integer and value != int(value):
            raise ConfigError(f"The hyper-parameter '{self.name}' is an integer.", got=f"{value!r}")
        self.variable.assign(value)

    def hold(self, value: float | None) -> None:
        """Set it, and keep it against all others; None lets go.

        Raises:
            ConfigError: As for `set`.
        """
        self.held = None
        if value is not None:
            self.set(value)
            self.held = float(value)


class ObjAttrParam:
    """A hyper-parameter that Python code reads from an object's attribute.

    Args:
        obj: The object.
        attr: The attribute's name.

    Raises:
        ConfigError: There is no such attribute.
    """

    def __init__(self, obj: object, attr: str) -> None:
        if not hasattr(obj, attr):
            raise ConfigError(f"{obj!r} has no attribute '{attr}'.")
        self.name = attr
        self._obj = obj

    def get(self) -> float:
        """Its value now."""
        return getattr(self._obj, self.name)

    def set(self, value: float) -> None:
        """Change it."""
        setattr(self._obj, self.name, value)
