import difflib
from collections.abc import Iterable, Mapping
from typing import Any, cast

# Suffix of the name of an output's Keras mask. Outputs without a mask have a scalar instead.
MASK = ":mask"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the most similar known names, or all known names."""
    names = sorted(set(known))
    lower = [each.lower() for each in names]
    near = difflib.get_close_matches(name.lower(), set(lower), n=3, cutoff=0.6)
    if close := [each for match in near for each in names if each.lower() == match]:
        return "Did you mean " + " or ".join(repr(c) for c in close) + "?"
    if not names:
        return "No names are defined."
    shown = ", ".join(repr(n) for n in names[:12])
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f"Use one of: {shown}{more}."


def in_one_spelling(name: str) -> str:
    """Return a name in lower case with underscores, so that registries can compare names."""
    return name.lower().replace("-", "_")


def alike(name: str, known: Iterable[str]) -> str | None:
    """Return the only known name that equals `name` except for case, `-` and `_`, or None."""
    names = list(known)
    plain = [in_one_spelling(each) for each in names]
    wanted = in_one_spelling(name)
    if name in names:
        return name
    return names[plain.index(wanted)] if plain.count(wanted) == 1 else None


def dotted(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to a dict with dotted keys. Empty mappings are omitted."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping):
            leaves |= dotted(cast("Mapping[str, Any]", value), name)
        else:
            leaves[name] = value
    return leaves


def unique(name: str, taken: Iterable[str]) -> str:
    """Return `name` if it is unused, else the first unused of `name_1`, `name_2`, and so on."""
    used = set(taken)
    if name not in used:
        return name
    n = 1
    while f"{name}_{n}" in used:
        n += 1
    return f"{name}_{n}"
