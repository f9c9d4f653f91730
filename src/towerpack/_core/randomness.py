"""Random streams as pure functions of a seed and a place.

Nothing here keeps state: the same keys give the same stream in any process, on any machine and in
any order, which is what makes results independent of worker counts and of resuming.
"""

from __future__ import annotations

import hashlib
import secrets
import struct

import numpy as np

Key = int | str


def derive_seed(seed: int, *keys: Key) -> int:
    """A 63-bit seed that is a pure function of `seed` and `keys`.

    Strings and integers are told apart, so `("1",)` and `(1,)` give different seeds. 63 bits, so
    that the result fits a signed TensorFlow `int64`.
    """
    digest = hashlib.blake2b(digest_size=8)
    for key in (seed, *keys):
        raw = key.encode() if isinstance(key, str) else str(int(key)).encode()
        digest.update(struct.pack("<cI", b"s" if isinstance(key, str) else b"i", len(raw)))
        digest.update(raw)
    return int.from_bytes(digest.digest(), "little") >> 1


def stream(seed: int, *keys: Key) -> np.random.Generator:
    """A NumPy generator (Philox, Salmon et al. 2011) for the place that `keys` names."""
    return np.random.Generator(np.random.Philox(key=derive_seed(seed, *keys)))


def fresh_seed() -> int:
    """A seed from the operating system, for runs that were given none; 31 bits, easy to type."""
    return secrets.randbits(31)
