"""The global random generators of Python and NumPy, for code that draws from them.

Nothing here makes such code good: `rng=True` does. But its numbers should not be alike in all
workers, nor depend on which worker drew them.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

_MASK = (1 << 32) - 1


def seed_globals(seed: int) -> None:
    """Seed both."""
    random.seed(seed)
    np.random.seed(seed & _MASK)


def globals_state() -> Any:
    """What changes whenever something is drawn from one of them."""
    legacy: Any = np.random.get_state(legacy=False)
    inner = legacy["state"]
    return random.getstate(), inner["pos"], int(inner["key"][0]), legacy["has_gauss"]
