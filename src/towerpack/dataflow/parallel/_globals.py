"""The global random generators of Python and NumPy, for code that draws from them.

Nothing here makes such code good: `rng=True` does. But its numbers should not be alike in all
workers, nor depend on which worker drew them.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any, cast

import numpy as np

_MASK = (1 << 32) - 1
_WORDS = 624
_SEEDED_WORD = 1 << 31
"""The first word of a Mersenne Twister that was seeded as Python does it."""


def seed_globals(seed: int) -> None:
    """Seed both."""
    random.seed(seed)
    np.random.seed(seed & _MASK)


def drawn_since(seed: int) -> bool:
    """Whether anything was drawn from one of them since `seed_globals(seed)`.

    Both make 624 words at a time and count how many of them are used: all, after seeding.
    """
    words = random.getstate()[1]
    return words[-1] != _WORDS or words[0] != _SEEDED_WORD or _numpy_drawn(seed & _MASK)


def _numpy_drawn(seed: int) -> bool:
    generator: Any = cast("Any", np.random).get_bit_generator()
    if not isinstance(generator, np.random.MT19937):  # it was replaced
        return True
    # Where NumPy keeps the words and the count for compiled code; `get_state` takes 100 µs.
    words = ctypes.c_uint32.from_address(generator.ctypes.state_address)
    used = ctypes.c_int.from_address(generator.ctypes.state_address + 4 * _WORDS)
    return used.value != _WORDS or words.value != seed
