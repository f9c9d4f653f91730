import inspect
from typing import Any, Self


class KeepsArguments:
    """Base class that stores the constructor arguments of each instance, to record a run."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if (args or kwargs) and cls.__init__ is object.__init__:
            raise TypeError(f"{cls.__name__}() takes no arguments")
        instance = super().__new__(cls)
        instance.__dict__["_arguments"] = args, kwargs
        return instance


def arguments_of(instance: KeepsArguments) -> dict[str, Any]:
    """Return the constructor arguments of an instance by name, including default values."""
    args, kwargs = instance.__dict__["_arguments"]
    signature = inspect.signature(type(instance).__init__)
    try:
        bound = signature.bind(instance, *args, **kwargs)
    except TypeError:  # A class with its own __new__ may have other arguments.
        return dict(kwargs)
    bound.apply_defaults()
    arguments: dict[str, Any] = {}
    for name, value in list(bound.arguments.items())[1:]:  # The first one is `self`.
        keywords = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        arguments.update(value if keywords else {name: value})
    return arguments
