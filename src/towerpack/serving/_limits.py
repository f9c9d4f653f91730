"""What a server takes at most, so that no request costs it its memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a server takes at most; what is beyond is refused with the status in parentheses.

    Attributes:
        batch: Rows that the model computes at once; a request of more is computed in parts.
        waiting: Requests that wait for the model (429).
        body_bytes: Of one request (413).
        held_bytes: Of all requests that are being received or computed (429).
        pixels: Of one picture, as its header says (400).
    """

    batch: int = 32
    waiting: int = 1024
    body_bytes: int = 16 << 20
    held_bytes: int = 512 << 20
    pixels: int = 50_000_000
