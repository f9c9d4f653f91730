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
        pipeline: Position in a pipeline: `DataFromArrays > MapData(decode) > BatchData(32)`.
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
    """Return the text of an exception, even if its `__str__` fails."""
    try:
        return str(error)
    except Exception as fault:  # noqa: BLE001
        return f"(no text: its __str__ raised {type(fault).__name__})"


def reason_of(error: BaseException) -> str:
    """Return why a TensorFlow graph failed, without call stack and node names."""
    return shortened(" ".join(_WHERE_IN_GRAPH.sub("", text_of(error)).split()))


def shortened(text: str, limit: int = 2000) -> str:
    """Return a message as valid UTF-8, and without its middle if it is long."""
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
    """Error in a function that was passed to a stage. The cause is chained."""


class BatchError(DataFlowError, ValueError):
    """Datapoints that cannot be stacked into one batch."""


class FormatError(DataFlowError, ValueError):
    """File or message that is damaged, hostile or of another format."""


class WorkerError(DataFlowError):
    """Worker of a parallel stage that died or does not answer."""


class StateError(TowerpackError, ValueError):
    """Saved state that does not match the object it is restored into."""


class SpecError(TowerpackError, ValueError):
    """Datapoint that does not match the model's input specs."""


class LayerError(TowerpackError, ValueError):
    """Misuse of a layer, scope or exposed name."""


class ConfigError(TowerpackError, ValueError):
    """Invalid argument or combination of arguments."""


class CallbackError(TowerpackError, RuntimeError):
    """Callbacks that do not work together."""


class EnvError(TowerpackError, RuntimeError):
    """Environment that fails repeatedly, or returns numbers that are not finite."""


class NumericsError(TowerpackError, ArithmeticError):
    """Cost or gradient that is not finite."""


class StepError(TowerpackError, RuntimeError):
    """Training step that failed inside TensorFlow, for example at a label out of range."""


class PeerError(TowerpackError, RuntimeError):
    """Process of the run that died, hangs or never connected."""


class CheckpointError(TowerpackError, RuntimeError):
    """Checkpoint that cannot be written or read."""


class CheckpointMismatchError(CheckpointError, ValueError):
    """Valid checkpoint of another model."""


class ExportError(TowerpackError, RuntimeError):
    """Model that cannot be exported, or whose exported form computes something else."""


class RequestError(TowerpackError, RuntimeError):
    """Request that a model server refused or did not answer.

    Args:
        what: Reason.
        status: HTTP status; 0 if there was no answer.
        fix: Imperative phrase that says how to fix the error.
    """

    def __init__(self, what: str, *, status: int = 400, fix: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.status = status


class MissingExtraError(TowerpackError, ImportError):
    """Optional dependency that is not installed."""


class InternalError(TowerpackError, RuntimeError):
    """Impossible state, which is a bug in Towerpack. Please report it."""
