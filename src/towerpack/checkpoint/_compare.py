"""Comparison of named tensors with those expected: every difference at once, near misses."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from towerpack._core.errors import CheckpointMismatchError

Spec = tuple[Sequence[int], Any]
"""Shape and dtype (anything whose `str`, or `.name`, is the dtype's name)."""

_SHOWN: Final = 20


def compare_names(
    expected: Mapping[str, Spec],
    found: Mapping[str, Spec],
    *,
    what: str = "the checkpoint",
    fix: str | None = None,
) -> None:
    """Check that two sets of named tensors agree in names, shapes and dtypes.

    Args:
        expected: What the model has.
        found: What the checkpoint holds.
        what: Names the checkpoint (and group) in the error.
        fix: Advice that ends the message; the default suits resuming.

    Raises:
        CheckpointMismatchError: They differ; the message lists what is missing, what is unexpected
            and what has another shape or dtype.
    """
    missing = sorted(expected.keys() - found.keys())
    unexpected = sorted(found.keys() - expected.keys())
    changed = [
        (name, _text(expected[name]), _text(found[name]))
        for name in sorted(expected.keys() & found.keys())
        if _differs(expected[name], found[name])
    ]
    if not (missing or unexpected or changed):
        return
    rows: list[str] = []
    rows += _listed("missing", [_missing_row(n, expected, found, unexpected) for n in missing])
    rows += _listed("unexpected", [f"{n} {_text(found[n])}" for n in unexpected])
    rows += _listed("different", [f"{n}: has {got}, needs {want}" for n, want, got in changed])
    raise CheckpointMismatchError(
        f"{what[:1].upper()}{what[1:]} belongs to another model.",
        got=f"{len(found)} tensors: {len(missing)} missing, {len(unexpected)} unexpected, "
        f"{len(changed)} of another shape or dtype",
        expected=f"{len(expected)} tensors with the model's names, shapes and dtypes",
        fix=fix
        or "build the model as it was when it was saved; or start anew from the weights that fit: "
        "TrainConfig(resume='never', init=SmartInit(PATH, ignore_mismatch=True))",
        details="\n".join(rows),
    )


def _missing_row(
    name: str, expected: Mapping[str, Spec], found: Mapping[str, Spec], unexpected: list[str]
) -> str:
    row = f"{name} {_text(expected[name])}"
    # A renamed tensor keeps its shape, so those are the better guesses.
    same_shape = [n for n in unexpected if list(found[n][0]) == list(expected[name][0])]
    pool = same_shape[:1000] or unexpected[:1000]
    close = difflib.get_close_matches(name, pool, n=1, cutoff=0.6)
    return f"{row} (did you mean {close[0]!r}?)" if close else row


def _listed(title: str, rows: list[str]) -> list[str]:
    if not rows:
        return []
    more = [f"… and {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
    return [f"  {title}:", *(f"    {row}" for row in rows[:_SHOWN] + more)]


def _differs(expected: Spec, found: Spec) -> bool:
    return list(expected[0]) != list(found[0]) or _dtype(expected[1]) != _dtype(found[1])


def _dtype(dtype: Any) -> str:
    return str(getattr(dtype, "name", dtype))


def _text(spec: Spec) -> str:
    return f"{_dtype(spec[1])} {list(spec[0])}"
