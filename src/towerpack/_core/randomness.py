"""Random number generators that depend only on a seed and keys.

The functions keep no state. The same seed and keys give the same random numbers in any process,
on any machine and in any order. Results do not depend on the number of workers or on resuming.
"""

import hashlib
import secrets
import struct

import numpy as np

Key = int | str


def derive_seed(seed: int, *keys: Key) -> int:
    """Return a 63-bit seed that depends only on `seed` and `keys`.

    The string "1" and the integer 1 give different seeds. The result fits into an `int64` tensor.
    """
    digest = hashlib.blake2b(digest_size=8)
    for key in (seed, *keys):
        raw = key.encode() if isinstance(key, str) else str(int(key)).encode()
        digest.update(struct.pack("<cI", b"s" if isinstance(key, str) else b"i", len(raw)))
        digest.update(raw)
    return int.from_bytes(digest.digest(), "little") >> 1


def stream(seed: int, *keys: Key) -> np.random.Generator:
    """Return a NumPy generator (Philox, Salmon et al. 2011) seeded with `seed` and `keys`."""
    return np.random.Generator(np.random.Philox(key=derive_seed(seed, *keys)))


def fresh_seed() -> int:
    return secrets.randbits(31)
