from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Return rows as lines of aligned columns. `sides` has `<` or `>` for each column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "".join(f"  {cell:{side}{w}}" for cell, side, w in zip(row, sides, widths, strict=True))
        for row in rows
    ]
