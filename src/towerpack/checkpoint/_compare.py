import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from towerpack._core.errors import CheckpointMismatchError

Spec = tuple[Sequence[int], Any]
"""Shape and dtype. The dtype may be any object whose `name` or `str` is the dtype's name."""

_SHOWN: Final = 20


def compare_names(
    expected: Mapping[str, Spec],
    actual: Mapping[str, Spec],
    *,
    what: str = "the checkpoint",
    fix: str | None = None,
) -> None:
    """Check that the tensors of a checkpoint have the model's names, shapes and dtypes.

    Args:
        expected: Specs of the model.
        actual: Specs of the checkpoint.
        what: Description of the checkpoint in the error.
        fix: Advice in the error. None gives advice for a resumed run.

    Raises:
        CheckpointMismatchError: The tensors differ. The message lists missing and unexpected
            tensors, and tensors with another shape or dtype.
    """
    missing = sorted(expected.keys() - actual.keys())
    unexpected = sorted(actual.keys() - expected.keys())
    changed = [
        f"{name}: has {_text(actual[name])}, needs {_text(expected[name])}"
        for name in sorted(expected.keys() & actual.keys())
        if _text(actual[name]) != _text(expected[name])
    ]
    if not (missing or unexpected or changed):
        return
    rows: list[str] = []
    rows += _listed("missing", [_missing_row(n, expected, actual, unexpected) for n in missing])
    rows += _listed("unexpected", [f"{n} {_text(actual[n])}" for n in unexpected])
    rows += _listed("different", changed)
    raise CheckpointMismatchError(
        f"{what[:1].upper()}{what[1:]} belongs to another model: its tensors differ.",
        got=f"{len(actual)} tensors: {len(missing)} missing, {len(unexpected)} unexpected, "
        f"{len(changed)} of another shape or dtype",
        expected=f"{len(expected)} tensors with the model's names, shapes and dtypes",
        fix=fix
        or "restore the model's code of the checkpoint; or start a new run from the weights that "
        "fit: TrainConfig(resume='never', init=SmartInit(PATH, ignore_mismatch=True))",
        details="\n".join(rows),
    )


def _missing_row(
    name: str, expected: Mapping[str, Spec], actual: Mapping[str, Spec], unexpected: list[str]
) -> str:
    row = f"{name} {_text(expected[name])}"
    # A renamed tensor keeps its shape, so tensors of the same shape are better guesses.
    same_shape = [n for n in unexpected if list(actual[n][0]) == list(expected[name][0])]
    pool = same_shape[:1000] or unexpected[:1000]
    close = difflib.get_close_matches(name, pool, n=1, cutoff=0.6)
    return f"{row} (did you mean {close[0]!r}?)" if close else row


def _listed(title: str, rows: list[str]) -> list[str]:
    if not rows:
        return []
    more = [f"… and {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
    return [f"  {title}:", *(f"    {row}" for row in rows[:_SHOWN] + more)]


def _text(spec: Spec) -> str:
    return f"{getattr(spec[1], 'name', spec[1])} {list(spec[0])}"
