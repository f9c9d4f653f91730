import re

# Parts of TensorFlow's error messages that describe a place in the graph.
_WHERE_IN_GRAPH = re.compile(
    r"Graph execution error:.*(?:traces unavailable>|\n\n(?=\S))|assertion failed:"
    r"|\{\{.*?\}\} ?|\[\[.*?\]\]|\[Op:.*",
    re.DOTALL,
)


class TowerpackError(Exception):
    """Base class of Towerpack's errors.

    Args:
        what: Sentence that says what is wrong, with the value.
        got: Actual value or state.
        expected: Expected value or state.
        fix: Imperative phrase that says how to fix the error.
        pipeline: Stages of the data pipeline: `DataFromArrays > MapData(decode) > BatchData(32)`.
        details: Longer text, such as a worker's traceback.
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
        lines = [self.what]
        for label in ("got", "expected", "to fix", "pipeline"):
            if (text := getattr(self, label.removeprefix("to "))) is not None:
                lines.append(f"  {label:<9} " + text.replace("\n", "\n" + " " * 12))
        if self.details is not None:
            lines.append(self.details)
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # The default would rebuild the error from `args`, and lose all other fields.
        return (_rebuild, (type(self), self.__dict__.copy()))


def text_of(error: BaseException) -> str:
    """Return the text of an exception, or a replacement if its `__str__` fails."""
    try:
        return str(error)
    except Exception as fault:  # noqa: BLE001
        return f"(no text: its __str__ raised {type(fault).__name__})"


def reason_of(error: BaseException) -> str:
    """Return a TensorFlow error message without the call stack and the names of graph nodes."""
    return shortened(" ".join(_WHERE_IN_GRAPH.sub("", text_of(error)).split()))


def shortened(text: str, limit: int = 2000) -> str:
    """Return a message as valid UTF-8, without its middle if it exceeds `limit` characters."""
    text, half = text.encode("utf-8", "backslashreplace").decode(), limit // 2
    return text if len(text) <= limit else f"{text[:half]} … {text[-half:]}"


def _rebuild(cls: type[TowerpackError], fields: dict[str, object]) -> TowerpackError:
    error = cls.__new__(cls)
    Exception.__init__(error, fields.get("what", ""))
    error.__dict__.update(fields)
    return error


class DataFlowError(TowerpackError, RuntimeError):
    """Failure of a data pipeline while it runs."""


class MapError(DataFlowError):
    """Error in a user's function that a data stage calls. `__cause__` is the original exception."""


class BatchError(DataFlowError, ValueError):
    """Datapoints that cannot be stacked into one batch."""


class FormatError(DataFlowError, ValueError):
    """File or message that is damaged, malicious or in another format."""


class WorkerError(DataFlowError):
    """Worker process of a parallel data stage that died or does not respond."""


class StateError(TowerpackError, ValueError):
    """Saved state that does not match the object to restore."""


class SpecError(TowerpackError, ValueError):
    """Datapoint that does not match the model's input specs."""


class LayerError(TowerpackError, ValueError):
    """Misuse of a layer, a scope or `expose()`."""


class ConfigError(TowerpackError, ValueError):
    """Invalid argument or combination of arguments."""


class CallbackError(TowerpackError, RuntimeError):
    """Callbacks that conflict with each other, or a callback that is used incorrectly."""


class EnvError(TowerpackError, RuntimeError):
    """Environment that fails repeatedly or returns NaN or infinity."""


class NumericsError(TowerpackError, ArithmeticError):
    """Cost or gradient that is NaN or infinite."""


class StepError(TowerpackError, RuntimeError):
    """Training step that failed inside TensorFlow, for example at a label out of range."""


class PeerError(TowerpackError, RuntimeError):
    """Process of the run that died, hangs or never connected."""


class CheckpointError(TowerpackError, RuntimeError):
    """Checkpoint that cannot be written or read."""


class CheckpointMismatchError(CheckpointError, ValueError):
    """Valid checkpoint that belongs to another model."""


class RemoteFileError(TowerpackError, RuntimeError):
    """A file behind a URL could not be read or written, although it was tried again."""


class ExportError(TowerpackError, RuntimeError):
    """Model that cannot be exported, or whose exported file computes different outputs."""


class RequestError(TowerpackError, RuntimeError):
    """Request that a model server rejected or did not answer.

    Args:
        what: Sentence that says why the request failed.
        status: HTTP status; 0 without an answer.
        fix: Imperative phrase that says how to fix the error.
    """

    def __init__(self, what: str, *, status: int = 400, fix: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.status = status


class MissingExtraError(TowerpackError, ImportError):
    """Optional dependency that is not installed."""


class InternalError(TowerpackError, RuntimeError):
    """Bug in Towerpack: a state that should be impossible. Please report it."""
