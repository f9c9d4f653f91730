"""Names: near misses for error messages, and unique names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# After the name of an output: the mask that Keras's layers have put on it, or a scalar without one.
MASK = ":mask"


def did_you_mean(name: str, known: Iterable[str], *, limit: int = 12) -> str:
    """A sentence that lists near misses of `name`, or else what there is."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        return "Did you mean " + " or ".join(repr(c) for c in close) + "?"
    if not names:
        return "There are none."
    shown = ", ".join(repr(n) for n in names[:limit])
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"There are: {shown}{more}."


def unique(name: str, taken: Iterable[str]) -> str:
    """`name`, or the first of `name_1`, `name_2`, … that is not taken."""
    used = set(taken)
    if name not in used:
        return name
    n = 1
    while f"{name}_{n}" in used:
        n += 1
    return f"{name}_{n}"
