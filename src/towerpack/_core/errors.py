"""Every error that Towerpack raises, in one tree below `TowerpackError`."""

from __future__ import annotations

import re

# Of the text of TensorFlow's errors: where in a graph they come from.
_WHERE_IN_GRAPH = re.compile(
    r"Graph execution error:.*(?:traces unavailable>|\n\n(?=\S))|assertion failed:"
    r"|\{\{.*?\}\} ?|\[\[.*?\]\]|\[Op:.*",
    re.DOTALL,
)


class TowerpackError(Exception):
    """Base of all errors raised on purpose.

    Args:
        what: One sentence that says what was wrong, with the value.
        got: What was found.
        expected: What was expected in its place.
        fix: What to do about it.
        pipeline: Where it happened, for example `DataFromArrays > MapData(decode) > BatchData(32)`.
        details: Longer text that belongs to the error, such as a worker's traceback.
    """

    def __init__(
        self,
        what: str,
        *,
        got: str | None = None,
        expected: str | None = None,
        fix: str | None = None,
        pipeline: str | None = None,
        details: str | None = None,
    ) -> None:
        self.what = what
        self.got = got
        self.expected = expected
        self.fix = fix
        self.pipeline = pipeline
        self.details = details
        super().__init__(what)

    def __str__(self) -> str:
        rows = [
            ("got", self.got),
            ("expected", self.expected),
            ("to fix", self.fix),
            ("pipeline", self.pipeline),
        ]
        lines = [self.what]
        for label, text in rows:
            if text is not None:
                lines.append(f"  {label:<9} " + text.replace("\n", "\n" + " " * 12))
        if self.details is not None:
            lines.append(self.details)
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # The default rebuilds from `args` alone and would lose every field but the first.
        return (_rebuild, (type(self), self.__dict__.copy()))


def text_of(error: BaseException) -> str:
    """The text of any exception; those of others may fail to give one."""
    try:
        return str(error)
    except Exception as fault:  # noqa: BLE001
        return f"(no text: its __str__ raised {type(fault).__name__})"


def reason_of(error: BaseException) -> str:
    """Return why a graph of TensorFlow failed, without call stack and names of nodes."""
    return shortened(" ".join(_WHERE_IN_GRAPH.sub("", text_of(error)).split()))


def shortened(text: str, limit: int = 2000) -> str:
    """Return a message in UTF-8, and without its middle if it is long."""
    text, half = text.encode("utf-8", "backslashreplace").decode(), limit // 2
    return text if len(text) <= limit else f"{text[:half]} … {text[-half:]}"


def _rebuild(cls: type[TowerpackError], fields: dict[str, object]) -> TowerpackError:
    error = cls.__new__(cls)
    Exception.__init__(error, fields.get("what", ""))
    error.__dict__.update(fields)
    return error


class DataFlowError(TowerpackError, RuntimeError):
    """A data pipeline failed while it ran."""


class MapError(DataFlowError):
    """A function given to a stage raised; the cause is chained."""


class BatchError(DataFlowError, ValueError):
    """Datapoints that cannot be stacked into one batch."""


class FormatError(DataFlowError, ValueError):
    """A file or message that is damaged, hostile, or not of the format that it was read as."""


class WorkerError(DataFlowError):
    """A worker of a parallel stage died, or does not answer."""


class StateError(TowerpackError, ValueError):
    """A saved state that does not fit what it is restored into."""


class SpecError(TowerpackError, ValueError):
    """A datapoint that does not fit the model's input specs."""


class LayerError(TowerpackError, ValueError):
    """A layer, scope or exposed name that is misused."""


class ConfigError(TowerpackError, ValueError):
    """An argument or combination of arguments that makes no sense."""


class CallbackError(TowerpackError, RuntimeError):
    """Callbacks that cannot work as they were put together."""


class EnvError(TowerpackError, RuntimeError):
    """An environment that fails again and again, or gives numbers that are not finite."""


class NumericsError(TowerpackError, ArithmeticError):
    """A cost or gradient that is not finite."""


class StepError(TowerpackError, RuntimeError):
    """A step that failed inside TensorFlow, for example at a label out of range."""


class PeerError(TowerpackError, RuntimeError):
    """Another process of the run died, hangs, or never came."""


class CheckpointError(TowerpackError, RuntimeError):
    """A checkpoint that cannot be written or read."""


class CheckpointMismatchError(CheckpointError, ValueError):
    """A valid checkpoint that belongs to another model."""


class ExportError(TowerpackError, RuntimeError):
    """A model that cannot be exported, or whose exported form computes something else."""


class RequestError(TowerpackError, RuntimeError):
    """A request that a model server refused or did not answer.

    Args:
        what: The reason.
        status: Of HTTP; 0 if no answer came.
        fix: What to do about it.
    """

    def __init__(self, what: str, *, status: int = 400, fix: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.status = status


class MissingExtraError(TowerpackError, ImportError):
    """An optional dependency is not installed."""


class InternalError(TowerpackError, RuntimeError):
    """A state that should be impossible: a bug in Towerpack, please report it."""
