from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from towerpack._core.errors import CheckpointMismatchError, ConfigError
from towerpack.cli._console import console, escape
from towerpack.cli._options import OUTPUT, SOURCE_HELP
from towerpack.cli._weights import is_float, read_weights, write_weights

if TYPE_CHECKING:
    import numpy as np


def average(
    sources: Annotated[list[str], typer.Argument(help=f"{SOURCE_HELP} At least two are needed.")],
    output: OUTPUT,
) -> None:
    """Average the weights of checkpoints (Vaswani et al. 2017, section 6.1).

    Integers are taken from the last source. Statistics of batch normalization are averaged too,
    which is only an approximation, so evaluate the result.
    """
    import numpy as np

    if len(sources) < 2:
        raise ConfigError(
            f"An average needs at least two sources, got {len(sources)}.",
            fix="pass several checkpoints, such as run/checkpoints/step-0000[789]*",
        )
    sums: dict[str, np.ndarray] = {}
    weights: dict[str, np.ndarray] = {}
    for source in sources:
        weights = {name: np.asarray(value) for name, value in read_weights(source).items()}
        shapes, expected = ({n: v.shape for n, v in some.items()} for some in (weights, sums))
        if sums and shapes != expected:
            unlike = sorted(n for n in {**shapes, **expected} if shapes.get(n) != expected.get(n))
            raise CheckpointMismatchError(
                f"{source} and {sources[0]} must have the same tensors, but some names or shapes "
                "differ.",
                got=", ".join(unlike[:20]),
            )
        for name, value in weights.items():
            wide = value.astype(np.float64) if is_float(value) else value
            sums[name] = sums[name] + wide if is_float(value) and name in sums else wide
    averaged = {
        name: (sums[name] / len(sources)).astype(value.dtype) if is_float(value) else value
        for name, value in weights.items()
    }
    write_weights(output, averaged)
    console().print(f"Wrote the average of {len(sources)} checkpoints to {escape(str(output))}.")
