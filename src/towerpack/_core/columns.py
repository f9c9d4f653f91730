from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Return table rows as text lines. `sides` has `<` (left) or `>` (right) for each column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "".join(f"  {cell:{side}{w}}" for cell, side, w in zip(row, sides, widths, strict=True))
        for row in rows
    ]
