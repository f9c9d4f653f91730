"""Random streams that depend only on a seed and keys.

Nothing here keeps state. The same keys give the same stream in any process, on any machine and in
any order, so results do not depend on the number of workers or on resuming.
"""

import hashlib
import secrets
import struct

import numpy as np

Key = int | str


def derive_seed(seed: int, *keys: Key) -> int:
    """Return a 63-bit seed that depends only on `seed` and `keys`.

    Strings and integers differ: `("1",)` and `(1,)` give different seeds. The result fits into a
    signed `int64` of TensorFlow.
    """
    digest = hashlib.blake2b(digest_size=8)
    for key in (seed, *keys):
        raw = key.encode() if isinstance(key, str) else str(int(key)).encode()
        digest.update(struct.pack("<cI", b"s" if isinstance(key, str) else b"i", len(raw)))
        digest.update(raw)
    return int.from_bytes(digest.digest(), "little") >> 1


def stream(seed: int, *keys: Key) -> np.random.Generator:
    """Return a NumPy generator (Philox, Salmon et al. 2011) for a seed and keys."""
    return np.random.Generator(np.random.Philox(key=derive_seed(seed, *keys)))


def fresh_seed() -> int:
    """Return a seed of 31 bits from the operating system."""
    return secrets.randbits(31)
